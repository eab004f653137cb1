"""A small client of Narad for asyncio: copy this file and the three .capnp files beside it.

    async with narad.Client(["127.0.0.1:7420"]) as client:
        await client.produce("orders", [narad.Record(b"a cup", key=b"customer-7")])
        deliveries = await client.consume("orders", wait_ms=5_000)
        await client.ack("orders", deliveries)

Run it within `asyncio.run(capnp.run(main()))`: Cap'n Proto's event loop lives inside asyncio's.

What this file keeps true:
 * every call ends: with an answer, or with `NaradError` after `give_up_s`;
 * what the interface allows to be sent again is sent again, after the pause that the node asks for,
   and what it does not allow is not;
 * one connection at a time; when it breaks, the next server is tried. Any node takes any call and
   passes it on to the owners of the partitions, so a partition that moves needs no care here.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import AsyncIterator, Callable, Optional, Sequence

import capnp

_HERE = Path(__file__).resolve().parent
# Beside this file after you have copied it; two directories up where it comes from.
_SCHEMA_DIR = _HERE if (_HERE / "client.capnp").exists() else _HERE.parent.parent
schema = capnp.load(os.fspath(_SCHEMA_DIR / "client.capnp"))

#: Codes of calls that changed nothing and may be sent again as they are, soon or at another node.
TRY_AGAIN = {
    "busy",
    "diskFull",
    "notOwner",
    "frozen",
    "closed",
    "notLeader",
    "unavailable",
    "shuttingDown",
    "dead",
}
#: Codes that leave open whether the change happened. So does a connection that breaks.
UNKNOWN = {"unknownOutcome", "timeout", "internal"}
#: Codes behind which another node may do better than the same one.
ELSEWHERE = {"diskFull", "shuttingDown", "internal"}

_PAUSE_S = 0.05  # before another attempt, where the node gives no advice
_PAUSE_MAX_S = 1.0
_CONNECT_S = 2.0


class NaradError(Exception):
    """What a node answered instead of doing it. `code` is a name of the table in schema/README.md."""

    def __init__(self, code: str, message: str, hint: str = "", retry_after_ms: int = 0, detail: str = ""):
        super().__init__(f"{message} ({code})" + (f"; {hint}" if hint else ""))
        self.code = code
        self.message = message
        self.hint = hint
        self.retry_after_ms = retry_after_ms
        self.detail = detail

    @classmethod
    def read(cls, error) -> NaradError:
        try:
            code = str(error.code)
        except capnp.KjException:  # a newer node's code that this schema does not have
            code = f"code{error.code.raw}"
        return cls(code, error.message, error.hint, error.retryAfterMs, error.detail)


class ProduceError(NaradError):
    """Some records of a batch were refused. `results` has, for each record in order, a `Placed` or
    the `NaradError` that says why it was not stored."""

    def __init__(self, results: list):
        refused = [one for one in results if isinstance(one, NaradError)]
        first = refused[0]
        super().__init__(
            first.code,
            f"{len(refused)} of {len(results)} records were refused, the first because: {first.message}",
            first.hint,
        )
        self.results = results


@dataclass(frozen=True)
class Record:
    value: bytes
    key: Optional[bytes] = None  # records of one key go to one partition; None is not the empty key
    time_ms: int = 0  # since 1970; 0: the node's clock decides


@dataclass(frozen=True)
class Placed:
    """Where a record is. Both None: it is stored, and on its way to its partition's owner."""

    partition: Optional[int] = None
    offset: Optional[int] = None


@dataclass(frozen=True)
class Lease:
    partition: int
    offset: int
    nonce: int


@dataclass(frozen=True)
class Delivery:
    record: Record
    lease: Lease
    deliveries: int  # by this owner, this one included


@dataclass(frozen=True)
class Replayed:
    offset: int
    record: Record


class Client:
    """Talks to one of `servers` ("host:port"). Any number of calls may run at the same time."""

    def __init__(self, servers: Sequence[str], call_s: float = 10.0, give_up_s: float = 60.0):
        self._servers = list(servers)
        self._call_s = call_s  # one attempt, on top of what a long poll waits
        self._give_up_s = give_up_s  # all attempts together
        self._next = 0
        self._node = None
        self._rpc = None
        self._stream = None
        self._connecting = asyncio.Lock()
        #: What was sent again, and why: codes and how often, of calls and of single records.
        self.repeated: collections.Counter = collections.Counter()
        #: The same of single leases: one that is settled while its partition moves is settled again.
        self.settled_again: collections.Counter = collections.Counter()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_):
        self.close()

    def close(self) -> None:
        self._drop(self._node)

    # ---- records

    async def produce(self, topic: str, records: Sequence[Record], partition: int = -1) -> list[Placed]:
        """Stores a batch (at most 10 000 records and 4 MiB); each record is on a disk when this
        returns. Without a partition a key decides, and else the node. What was in doubt is sent
        again, so a record can be stored twice. Raises `ProduceError` if any record was refused."""

        def read(result):
            if result.which == "committed":
                return Placed(result.committed.partition, result.committed.offset)
            return Placed() if result.which == "accepted" else NaradError.read(result.error)

        results = await self._each(
            [_to_capnp(record) for record in records],
            lambda node, batch: node.produce(topic=topic, records=batch, partition=partition),
            read,
            self.repeated,
        )
        if any(isinstance(result, NaradError) for result in results):
            raise ProduceError(results)
        return results

    async def consume(
        self,
        topic: str,
        max_records: int = 100,
        max_bytes: int = 1 << 20,
        wait_ms: int = 0,
        visibility_ms: int = 0,
    ) -> list[Delivery]:
        """Leases records of any partition; they are yours for `visibility_ms` (0: the topic's
        setting). Waits up to `wait_ms` (at most 60 000) for the first one; empty if none came."""
        answer = await self._call(
            lambda node: node.consume(
                topic=topic,
                maxRecords=max_records,
                maxBytes=max_bytes,
                waitMs=wait_ms,
                visibilityMs=visibility_ms,
            ),
            wait_s=wait_ms / 1000,
            # Records leased by a lost answer come again when their leases end.
            repeat_unknown=True,
        )
        return [
            Delivery(
                _from_capnp(one.record),
                Lease(one.lease.partition, one.lease.offset, one.lease.nonce),
                one.deliveries,
            )
            for one in answer.records
        ]

    async def ack(self, topic: str, deliveries: Sequence[Delivery]) -> list[tuple[Delivery, NaradError]]:
        """Done with these. Returns those whose lease had ended, usually by time or because the
        partition has moved: they come again."""
        return await self._settle(
            deliveries, lambda node, leases: node.ack(topic=topic, leases=leases)
        )

    async def nack(
        self, topic: str, deliveries: Sequence[Delivery], delay_ms: int = 0
    ) -> list[tuple[Delivery, NaradError]]:
        """Gives these back; they are delivered again after `delay_ms`. Returns as `ack`."""
        return await self._settle(
            deliveries, lambda node, leases: node.nack(topic=topic, leases=leases, delayMs=delay_ms)
        )

    async def extend(
        self, topic: str, deliveries: Sequence[Delivery], visibility_ms: int
    ) -> list[tuple[Delivery, NaradError]]:
        """Keeps these for `visibility_ms` from now. Returns as `ack`."""
        return await self._settle(
            deliveries,
            lambda node, leases: node.extend(topic=topic, leases=leases, visibilityMs=visibility_ms),
        )

    async def replay(
        self, topic: str, partition: int, start: int = 0, end: int = (1 << 64) - 1, from_time_ms: int = 0
    ) -> AsyncIterator[Replayed]:
        """Reads one partition, without leases, from the offset `start` up to `end` (exclusive) or to
        what is visible when it gets there. With `from_time_ms` it begins at the first record from
        `start` on whose time is that or later."""
        while start < end:
            answer = await self._call(
                # Two of the parameters are named `from` and `to`; `from` is a word of Python.
                lambda node: node.replay(
                    topic=topic, partition=partition, to=end, fromTimeMs=from_time_ms, **{"from": start}
                ),
                repeat_unknown=True,
            )
            from_time_ms = 0  # the rest is read by offset
            for one in answer.records:
                yield Replayed(one.offset, _from_capnp(one.record))
            if answer.next >= min(end, answer.hwm) or answer.next == start:
                return
            start = answer.next

    # ---- topics and the cluster; what comes back is read as the schema says: `topic.partitions[0].owner`

    async def create_topic(self, topic: str, partitions: int, parent: str = "", **settings):
        """`settings` are the fields of TopicSettings: `visibilityMs=5_000`, `retentionMs=86_400_000`, …"""
        # A parameter called `name` cannot be passed by name (pycapnp takes that word for itself).
        answer = await self._call(lambda node: node.createTopic(topic, partitions, parent, settings))
        return answer.topic

    async def alter_topic(self, topic: str, **settings):
        """Changes these settings of a living topic and leaves the others."""
        answer = await self._call(
            lambda node: node.alterTopic(topic, settings, list(settings)), repeat_unknown=True
        )
        return answer.topic

    async def describe_topic(self, topic: str):
        answer = await self._call(lambda node: node.describeTopic(topic), repeat_unknown=True)
        return answer.topic

    async def delete_topic(self, topic: str) -> None:
        await self._call(lambda node: node.deleteTopic(topic))

    async def members(self):
        return (await self._call(lambda node: node.members(), repeat_unknown=True)).members

    async def move_to(self, topic: str, partition: int, node_id: str) -> int:
        """Starts to move a partition to a node; returns the move's id. See `moves`."""
        answer = await self._call(
            lambda node: node.moveTo(topic=topic, partition=partition, to=node_id)
        )
        return answer.moveId

    async def moves(self):
        """Has `moves`, which run, and `finished`, the latest that ended."""
        return await self._call(lambda node: node.moves(), repeat_unknown=True)

    async def info(self):
        return (await self._call(lambda node: node.info(), repeat_unknown=True)).info

    async def connected(self):
        async with self._connecting:
            if self._node is None:
                host, _, port = self._servers[self._next % len(self._servers)].rpartition(":")
                self._next += 1
                self._stream = await asyncio.wait_for(
                    capnp.AsyncIoStream.create_connection(host.strip("[]"), int(port)), _CONNECT_S
                )
                self._rpc = capnp.TwoPartyClient(self._stream)
                self._node = self._rpc.bootstrap().cast_as(schema.Node)
            return self._node

    # ---- underneath

    async def _settle(self, deliveries, send) -> list[tuple[Delivery, NaradError]]:
        leases = [
            {"partition": one.lease.partition, "offset": one.lease.offset, "nonce": one.lease.nonce}
            for one in deliveries
        ]
        # Settling twice does no harm.
        results = await self._each(
            leases,
            send,
            lambda result: NaradError.read(result.error) if result.which == "error" else None,
            self.settled_again,
        )
        return [(delivery, error) for delivery, error in zip(deliveries, results) if error]

    async def _each(self, items: list, send: Callable, read: Callable, repeated: collections.Counter) -> list:
        """Sends `items`, and those again that are refused with a code that allows it, until there is
        another result for each or the time is over. `read` makes a `NaradError` of a refusal."""
        results: list = [None] * len(items)
        left = list(range(len(items)))
        give_up = time.monotonic() + self._give_up_s
        pause = _PAUSE_S
        while left:
            part = [items[index] for index in left]
            answer = await self._call(lambda node: send(node, part), repeat_unknown=True)
            again, advice_ms = [], 0
            for index, result in zip(left, answer.results):
                error = results[index] = read(result)
                if isinstance(error, NaradError) and error.code in TRY_AGAIN | UNKNOWN:
                    again.append(index)
                    advice_ms = max(advice_ms, error.retry_after_ms)
            left = again
            if not left or time.monotonic() > give_up:
                break
            codes = [results[index].code for index in left]
            repeated.update(codes)
            if ELSEWHERE.intersection(codes):
                self._drop(self._node)
            await asyncio.sleep(max(pause, advice_ms / 1000))
            pause = min(pause * 2, _PAUSE_MAX_S)
        return results

    async def _call(self, send: Callable, wait_s: float = 0.0, repeat_unknown: bool = False):
        """One call until there is an answer. Without `repeat_unknown` a lost answer is an error,
        for the call may have been carried out: look before you send it again."""
        give_up = time.monotonic() + self._give_up_s + wait_s
        pause = _PAUSE_S
        while True:
            node = None
            try:
                node = await self.connected()
                answer = await asyncio.wait_for(send(node), self._call_s + wait_s)
                if not (hasattr(answer, "error") and answer._has("error")):
                    return answer
                error = NaradError.read(answer.error)
                if error.code in ELSEWHERE:
                    self._drop(node)
            except (OSError, asyncio.TimeoutError, capnp.KjException) as cause:
                if isinstance(cause, capnp.KjException) and cause.type == "UNIMPLEMENTED":
                    raise NaradError("unsupported", "the node is too old for this call") from cause
                self._drop(node)
                sent = node is not None
                what = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
                error = NaradError(
                    "unknownOutcome" if sent else "unavailable",
                    f"the answer of a node was lost ({what})" if sent else f"no node answers ({what})",
                    "look at the state before you try again" if sent else "are the addresses right?",
                )
            again = error.code in TRY_AGAIN or (repeat_unknown and error.code in UNKNOWN)
            if not again or time.monotonic() > give_up:
                raise error
            self.repeated[error.code] += 1
            await asyncio.sleep(max(pause, error.retry_after_ms / 1000))
            pause = min(pause * 2, _PAUSE_MAX_S)

    def _drop(self, node) -> None:
        """Forgets the connection, unless it has been replaced already."""
        if node is not None and node is self._node:
            self._node = self._rpc = None
            with contextlib.suppress(Exception):
                self._stream.close()


def _to_capnp(record: Record) -> dict:
    fields = {"value": record.value, "timeMs": record.time_ms}
    if record.key is not None:
        fields["key"] = record.key
    return fields


def _from_capnp(record) -> Record:
    return Record(record.value, record.key if record._has("key") else None, record.timeMs)
