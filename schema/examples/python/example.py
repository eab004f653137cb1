#!/usr/bin/env python3
"""Uses every part of narad.py against a running cluster, and checks what it gets.

    example.py HOST:PORT[,HOST:PORT…] [--records N]

It creates a topic, provokes errors, lets leases end, and then produces and consumes while one of
the partitions is moved to another node. At the end everything that was produced must have been
consumed and acked, and must be read again by offset, with the same content. Exit code 0: nothing
was lost and nothing was wrong. The topic is deleted in any case.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import os
import sys
import time
import types
from typing import Optional

import capnp

import narad
from narad import NaradError, Record

PARTITIONS = 6
MOVES = 3  # partitions that are moved, one after the other
BATCH = 50
PATIENCE_S = 60.0
DAY_MS = 24 * 60 * 60 * 1_000


class Wrong(Exception):
    """The cluster did something that it must not do."""


def check(condition: bool, message: str) -> None:
    if not condition:
        raise Wrong(message)


def say(text: str) -> None:
    print(f"python: {text}", flush=True)


@contextlib.asynccontextmanager
async def expect(code: str, what: str):
    """What happens inside must be refused with this code."""
    try:
        yield
    except NaradError as error:
        check(error.code == code, f"{what}: expected {code}, got: {error}")
        check(bool(error.message) and bool(error.hint), f"{what}: message or hint is empty")
    else:
        raise Wrong(f"{what}: expected {code}, but it was done")


async def errors(client: narad.Client, topic: str) -> None:
    one = [Record(b"x")]
    async with expect("unknownTopic", "produce to a topic that is not there"):
        await client.produce(topic + "-not-there", one)
    async with expect("unknownTopic", "consume from a topic that is not there"):
        await client.consume(topic + "-not-there")
    async with expect("unknownPartition", "produce to a partition that is not there"):
        await client.produce(topic, one, partition=PARTITIONS)
    async with expect("unknownPartition", "replay of a partition that is not there"):
        _ = [record async for record in client.replay(topic, PARTITIONS)]
    async with expect("topicExists", "create a topic twice"):
        await client.create_topic(topic, PARTITIONS)
    async with expect("invalid", "create a topic without partitions"):
        await client.create_topic(topic + "-empty", 0)
    async with expect("notMember", "move to a node that is not there"):
        await client.move_to(topic, 0, "no-such-node")

    # A record that is too large is refused alone; the others of its batch are stored.
    limits = await client.info()
    try:
        await client.produce(topic, [Record(b"small"), Record(bytes(limits.maxRecordBytes + 1))])
    except narad.ProduceError as error:
        first, second = error.results
        check(isinstance(first, narad.Placed), f"the small record was refused: {first}")
        check(second.code == "tooLarge", f"expected tooLarge, got: {second}")
    else:
        raise Wrong("a record over the limit was stored")
    await take(client, topic, 1)
    say("errors: eight refusals, each with the expected code, a message and a hint")


async def busy(client: narad.Client, topic: str) -> None:
    """A connection takes 1024 long polls at a time and answers `busy` to one more. The client waits
    as long as it is advised and tries again, until there is room."""
    node = await client.connected()
    polls = [
        asyncio.ensure_future(node.consume(topic=topic, waitMs=30_000, localOnly=True))
        for _ in range(1_100)
    ]
    answered, _ = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
    answer = answered.pop().result()
    check(answer._has("error"), "the first answer to 1100 long polls is not that there are too many")
    error = NaradError.read(answer.error)
    check(error.code == "busy", f"expected busy, got: {error}")
    check(error.retry_after_ms > 0, "busy without advice when to try again")

    one_more = asyncio.ensure_future(client.consume(topic, wait_ms=100))
    await asyncio.sleep(0.5)
    check(not one_more.done(), "there was room for one more long poll")
    for poll in polls:
        poll.cancel()  # ends the poll at the node, too
    check(await one_more == [], "an empty topic gave a record")
    say(f"busy: told to come back after {error.retry_after_ms} ms, done as soon as there was room")


async def again(client: narad.Client) -> None:
    """Leases that are refused for reasons that pass are sent again, the others are not. No node does
    this when it is asked to, so the answers are made here."""
    scripted = [["ok", "busy", "closed", "staleLease"], ["unavailable", "ok"], ["ok"]]
    asked = []

    async def send(_node, leases):
        asked.append([lease["offset"] for lease in leases])
        return types.SimpleNamespace(results=[result(code) for code in scripted.pop(0)])

    def result(code: str):
        error = types.SimpleNamespace(code=code, message="", hint="", retryAfterMs=1, detail="")
        return types.SimpleNamespace(which="ok" if code == "ok" else "error", error=error)

    deliveries = [narad.Delivery(Record(b""), narad.Lease(0, offset, 1), 1) for offset in range(4)]
    left = await client._settle(deliveries, send)
    check(asked == [[0, 1, 2, 3], [1, 2], [1]], f"what was sent again: {asked}")
    outcome = [(delivery.lease.offset, error.code) for delivery, error in left]
    check(outcome == [(3, "staleLease")], f"what could not be settled: {outcome}")
    say("retries: single leases are settled again where the code allows it")


async def take(client: narad.Client, topic: str, count: int) -> list[narad.Delivery]:
    """Consumes and acks exactly so many records."""
    taken: list[narad.Delivery] = []
    while len(taken) < count:
        got = await client.consume(topic, max_records=count - len(taken), wait_ms=5_000)
        check(bool(got), f"{len(taken)} of {count} records came, and then none for 5 s")
        stale = await client.ack(topic, got)
        check(not stale, f"a fresh lease could not be acked: {stale}")
        taken += got
    return taken


def only(deliveries: list[narad.Delivery]) -> narad.Delivery:
    check(len(deliveries) == 1, f"expected one record, got {len(deliveries)}")
    return deliveries[0]


async def leases(client: narad.Client, topic: str) -> None:
    """What becomes of a record that is not acked."""
    # Nobody acks in time: it comes again, and the old lease is worth nothing.
    await client.produce(topic, [Record(b"forgotten", key=b"k")])
    first = only(await client.consume(topic, wait_ms=5_000, visibility_ms=300))
    second = only(await client.consume(topic, wait_ms=5_000))
    check(second.record == first.record, "another record came back")
    check(second.deliveries == first.deliveries + 1, "the deliveries are not counted")
    stale = await client.ack(topic, [first])
    check([error.code for _, error in stale] == ["staleLease"], f"an old lease was taken: {stale}")

    # Given back with a delay: not before that, and then soon.
    began = time.monotonic()
    check(await client.nack(topic, [second], delay_ms=500) == [], "the nack failed")
    third = only(await client.consume(topic, wait_ms=5_000, visibility_ms=2_000))
    check(time.monotonic() - began >= 0.49, "it came back before the delay was over")

    # Extended: it stays away although its first visibility is over.
    check(await client.extend(topic, [third], visibility_ms=30_000) == [], "the extension failed")
    check(await client.consume(topic, wait_ms=2_500) == [], "it came back in spite of the extension")
    check(await client.ack(topic, [third]) == [], "the ack after the extension failed")

    # A long poll is woken by the next record.
    poll = asyncio.ensure_future(client.consume(topic, wait_ms=20_000))
    await asyncio.sleep(0.3)
    began = time.monotonic()
    await client.produce(topic, [Record(b"wake up")])
    woken = await poll
    check(len(woken) == 1 and time.monotonic() - began < 10.0, "the long poll was not woken")
    await client.ack(topic, woken)
    say("leases: timeout, stale ack, nack with delay, extend, a woken long poll")


class Work:
    """What was produced, and what came back."""

    def __init__(self) -> None:
        self.produced: dict[bytes, Record] = {}  # by value; every value is there once
        self.placed: dict[tuple[int, int], bytes] = {}
        self.consumed: collections.Counter = collections.Counter()  # by value: how often
        self.consumed_keys: dict[bytes, Optional[bytes]] = {}
        self.given_back: set[bytes] = set()
        self.stale_acks = 0

    def batch(self) -> list[Record]:
        """Keyed records, records without a key, and some with an empty key."""
        first, out = len(self.produced), []
        for number in range(first, first + BATCH):
            key = None if number % 3 == 0 else b"" if number % 101 == 1 else b"key-%d" % (number % 40)
            out.append(Record(b"%08d " % number + os.urandom(number % 700), key))
        return out


async def produce_batch(client: narad.Client, topic: str, work: Work, partition: int = -1) -> None:
    records = work.batch()
    placed = await client.produce(topic, records, partition)
    for record, at in zip(records, placed):
        work.produced[record.value] = record
        if at.partition is not None:
            check((at.partition, at.offset) not in work.placed, f"two records were placed at {at}")
            work.placed[at.partition, at.offset] = record.value


async def consume_all(client: narad.Client, topic: str, work: Work, all_produced: asyncio.Event) -> None:
    """A worker: leases, works, acks. Here and there it fails and gives the record back."""
    last_progress = time.monotonic()
    while not (all_produced.is_set() and len(work.consumed) >= len(work.produced)):
        deliveries = await client.consume(topic, max_records=200, wait_ms=2_000)
        done, failed = [], []
        for one in deliveries:
            value = one.record.value
            # The produce call may not have been answered yet, but what came must have been sent.
            if int(value[:8]) % 97 == 5 and value not in work.given_back:
                work.given_back.add(value)
                failed.append(one)
            else:
                done.append(one)
        work.stale_acks += len(await client.ack(topic, done)) + len(await client.nack(topic, failed, 100))
        for one in done:
            work.consumed[one.record.value] += 1
            work.consumed_keys[one.record.value] = one.record.key
            if work.consumed[one.record.value] == 1:
                last_progress = time.monotonic()
        missing = len(work.produced) - len(work.consumed)
        check(time.monotonic() - last_progress < PATIENCE_S, f"{missing} records do not come")


async def start_move(admin: narad.Client, topic: str, partition: int):
    """Returns the partition as it was, where it goes, and the move's id."""
    until = time.monotonic() + PATIENCE_S
    while True:
        before = (await admin.describe_topic(topic)).partitions[partition]
        others = [m.id for m in await admin.members() if m.id != before.owner and m.status == "alive"]
        check(bool(others), "there is no second node to move a partition to")
        target = others[partition % len(others)]
        try:
            return before, target, await admin.move_to(topic, partition, target)
        except NaradError as error:
            # The planner balances the cluster at the same time and was faster: look again.
            if error.code != "refused" or time.monotonic() > until:
                raise
        await asyncio.sleep(0.1)


async def move_one(
    client: narad.Client, admin: narad.Client, topic: str, work: Work, partition: int
) -> None:
    """Moves a partition to another node, and goes on producing until it is there."""
    produced, began = len(work.produced), time.monotonic()
    before, target, move_id = await start_move(admin, topic, partition)
    while True:
        await produce_batch(client, topic, work)
        await produce_batch(client, topic, work, partition)  # by name, to the one that moves
        # The epoch counts changes of the owner; the planner may move it once more at any time.
        if (await admin.describe_topic(topic)).partitions[partition].epoch != before.epoch:
            break
        check(time.monotonic() - began < PATIENCE_S, f"move {move_id} does not end")
    seconds = time.monotonic() - began
    finished = [move for move in (await admin.moves()).finished if move.moveId == move_id]
    freeze = ""
    if finished:  # a bounded history
        check(finished[0].outcome == "flipped", f"the move ended as {finished[0].outcome}")
        freeze = f", frozen for {finished[0].freezeUs / 1000:.1f} ms"
    say(
        f"move: partition {partition} went from {before.owner} to {target} in {seconds:.2f} s{freeze}; "
        f"{len(work.produced) - produced} records were produced meanwhile"
    )


async def through_moves(
    client: narad.Client, admin: narad.Client, topic: str, count: int
) -> Work:
    """Produces and consumes at the same time, and moves partitions in the middle."""
    work, all_produced = Work(), asyncio.Event()

    async def produce_all() -> None:
        while len(work.produced) < count // 2:
            await produce_batch(client, topic, work)
        for partition in range(MOVES):
            await move_one(client, admin, topic, work, partition)
        more = len(work.produced) + count // 2
        while len(work.produced) < more:
            await produce_batch(client, topic, work)
        all_produced.set()

    client.repeated.clear()
    tasks = [
        asyncio.ensure_future(produce_all()),
        asyncio.ensure_future(consume_all(client, topic, work, all_produced)),
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    again = sum(times - 1 for times in work.consumed.values())
    say(
        f"work: {len(work.produced)} produced, {len(work.consumed)} consumed and acked, "
        f"{len(work.given_back)} given back on purpose, {again} delivered once more, "
        f"{work.stale_acks} leases had ended"
    )
    # A move is nothing that a client has to know of.
    visible = {code: client.repeated[code] for code in ("notOwner", "frozen") if client.repeated[code]}
    check(not visible, f"calls were refused because of a move: {visible}")
    say(f"calls that had to be sent again: {dict(client.repeated) or 'none'}")
    return work


async def compare(client: narad.Client, topic: str, work: Work) -> None:
    """Everything was consumed, nothing else was; nothing is left; the logs say the same."""
    lost = work.produced.keys() - work.consumed.keys()
    strange = work.consumed.keys() - work.produced.keys()
    check(not lost, f"{len(lost)} records are lost, among them {sorted(v[:8] for v in lost)[:5]}")
    check(not strange, f"{len(strange)} consumed records were never produced")

    for value, record in work.produced.items():
        check(record.key == work.consumed_keys[value], f"record {value[:8]!r} came with another key")

    replayed = collections.Counter()
    logs: list[list[narad.Replayed]] = []
    for partition in range(PARTITIONS):
        logs.append([one async for one in client.replay(topic, partition)])
        for one in logs[partition]:
            value = one.record.value
            if value in work.produced:
                replayed[value] += 1
                same = one.record.key == work.produced[value].key
                check(same, f"record {value[:8]!r} has another key in the log")
            expected = work.placed.get((partition, one.offset))
            check(expected in (None, value), f"another record is at {partition}:{one.offset}")
    lost = work.produced.keys() - replayed.keys()
    check(not lost, f"{len(lost)} records are not in the logs")
    twice = sum(times - 1 for times in replayed.values())
    check(twice == 0 or any(client.repeated[code] for code in narad.UNKNOWN), f"{twice} records were stored twice without any retry")

    # By time: from the first record on that is not older than one in the middle.
    for partition, log in enumerate(logs):
        if log:
            since = log[len(log) // 2].record.time_ms
            first = next(n for n, one in enumerate(log) if one.record.time_ms >= since)
            by_time = [one async for one in client.replay(topic, partition, from_time_ms=since)]
            check(by_time == log[first:], f"the replay of partition {partition} by time differs")

    # Acks that went to the former owner in the last moment of the move may have been left behind.
    until = time.monotonic() + PATIENCE_S
    while True:
        for one in await client.consume(topic, max_records=1_000):
            check(one.record.value in work.produced, "a record that was never produced")
            await client.ack(topic, [one])
        partitions = (await client.describe_topic(topic)).partitions
        if all(p.known and p.frontier == p.hwm for p in partitions):
            break
        check(time.monotonic() < until, f"not everything counts as acked: {partitions}")
        await asyncio.sleep(0.2)
    say(f"replay: {sum(replayed.values())} records by offset and by time, all with the same content; nothing is left to ack")


async def run(servers: list[str], count: int) -> None:
    name = f"example-python-{os.getpid()}-{int(time.time())}"
    # Commands have a client of their own, so that the other's counts are about records alone.
    async with narad.Client(servers) as client, narad.Client(servers) as admin:
        about = await client.info()
        say(f"connected to node {about.id}, version {about.version}; topic {name}")
        await client.create_topic(name, PARTITIONS, retentionMs=DAY_MS)
        try:
            altered = (await client.alter_topic(name, visibilityMs=10_000)).settings
            check(altered.visibilityMs == 10_000, "a setting was not changed")
            check(altered.retentionMs == DAY_MS, "a setting was changed that was not named")
            await errors(client, name)
            await leases(client, name)
            await busy(client, name)
            await again(client)
            work = await through_moves(client, admin, name, count)
            await compare(client, name, work)
        finally:
            await client.delete_topic(name)
    say("lost: 0")


def main() -> int:
    parser = argparse.ArgumentParser(description="Example and check of a Narad client.")
    parser.add_argument("servers", help="nodes to ask, HOST:PORT[,HOST:PORT…]")
    parser.add_argument("--records", type=int, default=10_000, help="how many to produce (default: 10000)")
    arguments = parser.parse_args()
    try:
        asyncio.run(capnp.run(run(arguments.servers.split(","), arguments.records)))
    except (Wrong, NaradError) as error:
        print(f"python: FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
