// Uses every part of narad.h against a running cluster, and checks what it gets.
//
//   example HOST:PORT[,HOST:PORT…] [RECORDS]
//
// It creates a topic, provokes errors, lets leases end, and then produces and consumes while
// partitions are moved to other nodes. At the end everything that was produced must have been
// consumed and acked, and must be read again by offset, with the same content. Exit code 0: nothing
// was lost and nothing was wrong. The topic is deleted in any case.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "narad.h"

namespace {

using narad::Client;
using narad::Delivery;
using narad::Error;
using narad::ErrorCode;
using narad::Record;

constexpr uint32_t PARTITIONS = 6;
constexpr uint32_t MOVES = 3;  // partitions that are moved, one after the other
constexpr size_t BATCH = 50;
constexpr uint64_t DAY_MS = 24 * 60 * 60 * 1'000;
constexpr auto PATIENCE = 60 * kj::SECONDS;
constexpr size_t STACK_BYTES = 256 << 10;  // of a fiber

// The cluster did something that it must not do.
struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <typename... Parts>
void check(bool condition, const Parts&... message) {
  if (!condition) throw Wrong(join(message...));
}

template <typename... Parts>
void say(const Parts&... parts) {
  std::cout << "c++: " << join(parts...) << std::endl;
}

// `action` must be refused with this code.
template <typename Action>
void expect(ErrorCode code, const char* what, Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    check(error.code == code, what, ": expected ", narad::nameOf(code), ", got: ", error.what());
    check(!error.message.empty() && !error.hint.empty(), what, ": message or hint is empty");
    return;
  }
  throw Wrong(join(what, ": expected ", narad::nameOf(code), ", but it was done"));
}

// What was produced, and what came back.
struct Work {
  std::map<std::string, Record> produced;  // by value; every value is there once
  std::map<std::pair<uint32_t, uint64_t>, std::string> placed;
  std::map<std::string, int> consumed;  // by value: how often
  std::map<std::string, std::optional<std::string>> consumedKeys;
  std::set<std::string> givenBack;
  size_t staleLeases = 0;
  bool allProduced = false;
};

class Example {
 public:
  Example(kj::AsyncIoContext& io, const std::vector<std::string>& servers, size_t count)
      : io(io),
        timer(io.provider->getTimer()),
        client(io, servers),
        admin(io, servers),
        topic(join("example-cpp-", getpid(), "-", std::time(nullptr))),
        count(count) {}

  void run() {
    auto& wait = io.waitScope;
    {
      auto info = client.info(wait);
      auto about = info.getInfo();
      say("connected to node ", about.getId().cStr(), ", version ", about.getVersion().cStr(), "; topic ", topic);
    }
    using Settings = narad::schema::TopicSettings::Builder;
    client.createTopic(wait, topic, PARTITIONS, [](Settings settings) { settings.setRetentionMs(DAY_MS); });
    try {
      {
        auto answer = client.alterTopic(wait, topic, {narad::schema::Setting::VISIBILITY_MS},
                                        [](Settings settings) { settings.setVisibilityMs(10'000); });
        auto altered = answer.getTopic().getSettings();
        check(altered.getVisibilityMs() == 10'000, "a setting was not changed");
        check(altered.getRetentionMs() == DAY_MS, "a setting was changed that was not named");
      }
      errors(wait);
      leases(wait);
      busy(wait);
      throughMoves(wait);
      compare(wait);
    } catch (...) {
      failed = std::current_exception();
    }
    try {
      client.deleteTopic(wait, topic);
    } catch (...) {
      if (!failed) failed = std::current_exception();
    }
    if (failed) std::rethrow_exception(failed);
    say("lost: 0");
  }

 private:
  void errors(kj::WaitScope& wait) {
    std::string missing = topic + "-not-there";
    expect(ErrorCode::UNKNOWN_TOPIC, "produce to a topic that is not there",
           [&] { client.produce(wait, missing, {{"x"}}); });
    expect(ErrorCode::UNKNOWN_TOPIC, "consume from a topic that is not there",
           [&] { client.consume(wait, missing); });
    expect(ErrorCode::UNKNOWN_PARTITION, "produce to a partition that is not there",
           [&] { client.produce(wait, topic, {{"x"}}, PARTITIONS); });
    expect(ErrorCode::UNKNOWN_PARTITION, "replay of a partition that is not there",
           [&] { client.replay(wait, topic, PARTITIONS, [](auto&) {}); });
    expect(ErrorCode::TOPIC_EXISTS, "create a topic twice", [&] { client.createTopic(wait, topic, PARTITIONS); });
    expect(ErrorCode::INVALID, "create a topic without partitions",
           [&] { client.createTopic(wait, topic + "-empty", 0); });
    expect(ErrorCode::NOT_MEMBER, "move to a node that is not there",
           [&] { client.moveTo(wait, topic, 0, "no-such-node"); });

    // A record that is too large is refused alone; the others of its batch are stored.
    auto limit = client.info(wait).getInfo().getMaxRecordBytes();
    try {
      client.produce(wait, topic, {{"small"}, {std::string(limit + 1, 'x')}});
      throw Wrong("a record over the limit was stored");
    } catch (const narad::ProduceError& error) {
      check(!error.results[0].error, "the small record was refused");
      check(error.results[1].error && error.results[1].error->code == ErrorCode::TOO_LARGE,
            "expected tooLarge, got: ", error.what());
    }
    auto small = client.consume(wait, topic, consumeFor(5'000));
    check(small.size() == 1 && small[0].record.value == "small", "the small record did not come");
    check(client.ack(wait, topic, small).empty(), "a fresh lease could not be acked");
    say("errors: eight refusals, each with the expected code, a message and a hint");
  }

  // What becomes of a record that is not acked.
  void leases(kj::WaitScope& wait) {
    // Nobody acks in time: it comes again, and the old lease is worth nothing.
    client.produce(wait, topic, {{"forgotten", "k"}});
    auto first = one(client.consume(wait, topic, consumeFor(5'000, 300)));
    auto second = one(client.consume(wait, topic, consumeFor(5'000)));
    check(second.record.value == first.record.value && second.record.key == first.record.key,
          "another record came back");
    check(second.deliveries == first.deliveries + 1, "the deliveries are not counted");
    auto stale = client.ack(wait, topic, {first});
    check(stale.size() == 1 && stale[0].second.code == ErrorCode::STALE_LEASE, "an old lease was taken");

    // Given back with a delay: not before that, and then soon.
    auto began = timer.now();
    check(client.nack(wait, topic, {second}, 500).empty(), "the nack failed");
    auto third = one(client.consume(wait, topic, consumeFor(5'000, 2'000)));
    check(timer.now() - began >= 490 * kj::MILLISECONDS, "it came back before the delay was over");

    // Extended: it stays away although its first visibility is over.
    check(client.extend(wait, topic, {third}, 30'000).empty(), "the extension failed");
    check(client.consume(wait, topic, consumeFor(2'500)).empty(), "it came back in spite of the extension");
    check(client.ack(wait, topic, {third}).empty(), "the ack after the extension failed");

    // A long poll is woken by the next record. The poll runs in a fiber, so that we can produce.
    std::vector<Delivery> woken;
    auto poll = kj::startFiber(STACK_BYTES, [&](kj::WaitScope& own) {
      woken = client.consume(own, topic, consumeFor(20'000));
    });
    timer.afterDelay(300 * kj::MILLISECONDS).wait(wait);
    began = timer.now();
    client.produce(wait, topic, {{"wake up"}});
    poll.wait(wait);
    check(woken.size() == 1 && timer.now() - began < 10 * kj::SECONDS, "the long poll was not woken");
    client.ack(wait, topic, woken);
    say("leases: timeout, stale ack, nack with delay, extend, a woken long poll");
  }

  // A connection takes 1024 long polls at a time and answers `busy` to one more. The client waits as
  // long as it is advised and tries again, until there is room. Promises, not fibers: there are many
  // polls and each does little.
  void busy(kj::WaitScope& wait) {
    auto node = client.node(wait);
    auto refused = kj::newPromiseAndFulfiller<void>();
    std::optional<Error> error;
    std::vector<kj::Promise<void>> polls;
    for (int i = 0; i < 1'100; ++i) {
      auto request = node.consumeRequest();
      request.setTopic(topic);
      request.setWaitMs(30'000);
      request.setLocalOnly(true);
      polls.push_back(request.send()
                          .then([&](capnp::Response<Client::Node::ConsumeResults> answer) {
                            if (answer.hasError() && !error) error.emplace(answer.getError());
                            refused.fulfiller->fulfill();
                          })
                          .eagerlyEvaluate(nullptr));
    }
    refused.promise.wait(wait);
    check(bool(error), "the first answer to 1100 long polls is not that there are too many");
    check(error->code == ErrorCode::BUSY, "expected busy, got: ", error->what());
    check(error->retryAfterMs > 0, "busy without advice when to try again");

    bool done = false;
    auto oneMore = fiber([&](kj::WaitScope& own) {
      check(client.consume(own, topic, consumeFor(100)).empty(), "an empty topic gave a record");
      done = true;
    });
    timer.afterDelay(500 * kj::MILLISECONDS).wait(wait);
    check(!done, "there was room for one more long poll");
    polls.clear();  // ends the polls at the node, too
    oneMore.wait(wait);
    if (failed) std::rethrow_exception(failed);
    say("busy: told to come back after ", error->retryAfterMs, " ms, done as soon as there was room");
  }

  // Produces and consumes at the same time, each in a fiber of its own, and moves partitions in the
  // middle.
  void throughMoves(kj::WaitScope& wait) {
    auto repeatedBefore = client.repeated();
    auto producer = fiber([this](kj::WaitScope& own) { produceAll(own); });
    auto consumer = fiber([this](kj::WaitScope& own) { consumeAll(own); });
    // The first that fails ends both.
    kj::joinPromises(kj::arr(kj::mv(producer), kj::mv(consumer)))
        .exclusiveJoin(kj::mv(failure.promise))
        .wait(wait);
    if (failed) std::rethrow_exception(failed);
    size_t again = 0;
    for (auto& [value, times] : work.consumed) again += times - 1;
    say("work: ", work.produced.size(), " produced, ", work.consumed.size(), " consumed and acked, ",
        work.givenBack.size(), " given back on purpose, ", again, " delivered once more, ", work.staleLeases,
        " leases had ended");
    // A move is nothing that a client has to know of.
    std::string repeated;
    for (auto& [code, times] : client.repeated()) {
      auto now = times - (repeatedBefore.count(code) ? repeatedBefore[code] : 0);
      if (now == 0) continue;
      check(code != ErrorCode::NOT_OWNER && code != ErrorCode::FROZEN, now,
            " calls were refused because of a move: ", narad::nameOf(code));
      repeated += join(" ", narad::nameOf(code), " ", now);
    }
    say("calls that had to be sent again:", repeated.empty() ? " none" : repeated);
  }

  // A promise carries only KJ's own exceptions, so ours are kept beside it.
  template <typename Body>
  kj::Promise<void> fiber(Body body) {
    return kj::startFiber(STACK_BYTES, [this, body](kj::WaitScope& own) {
      try {
        body(own);
      } catch (const std::exception&) {
        failed = std::current_exception();
        failure.fulfiller->fulfill();
      }
    });
  }

  void produceAll(kj::WaitScope& wait) {
    while (work.produced.size() < count / 2) produceBatch(wait);
    for (uint32_t partition = 0; partition < MOVES; ++partition) moveOne(wait, partition);
    auto more = work.produced.size() + count / 2;
    while (work.produced.size() < more) produceBatch(wait);
    work.allProduced = true;
  }

  // Keyed records, records without a key, and some with an empty key.
  void produceBatch(kj::WaitScope& wait, int32_t partition = -1) {
    std::vector<Record> records;
    for (size_t number = work.produced.size(); records.size() < BATCH; ++number) {
      char head[16];
      std::snprintf(head, sizeof head, "%08zu ", number);
      Record record{head};
      for (size_t i = 0; i < number % 700; ++i) record.value.push_back(static_cast<char>(random()));
      if (number % 3 != 0) record.key = number % 101 == 1 ? "" : join("key-", number % 40);
      records.push_back(std::move(record));
    }
    auto placed = client.produce(wait, topic, records, partition);
    for (size_t i = 0; i < records.size(); ++i) {
      if (placed[i].committed) {
        bool fresh = work.placed.insert({{placed[i].partition, placed[i].offset}, records[i].value}).second;
        check(fresh, "two records were placed at ", placed[i].partition, ":", placed[i].offset);
      }
      work.produced.emplace(records[i].value, records[i]);
    }
  }

  struct Started {
    std::string source, target;
    uint64_t epoch, moveId;
  };

  Started startMove(kj::WaitScope& wait, uint32_t partition) {
    for (auto began = timer.now();;) {
      auto described = admin.describeTopic(wait, topic);
      auto before = described.getTopic().getPartitions()[partition];
      Started out{before.getOwner(), "", before.getEpoch(), 0};
      std::vector<std::string> others;
      auto all = admin.members(wait);
      for (auto member : all.getMembers()) {
        if (out.source != member.getId().cStr() && member.getStatus() == "alive") others.push_back(member.getId());
      }
      check(!others.empty(), "there is no second node to move a partition to");
      out.target = others[partition % others.size()];
      try {
        out.moveId = admin.moveTo(wait, topic, partition, out.target);
        return out;
      } catch (const Error& error) {
        // The planner balances the cluster at the same time and was faster: look again.
        if (error.code != ErrorCode::REFUSED || timer.now() - began > PATIENCE) throw;
      }
      timer.afterDelay(100 * kj::MILLISECONDS).wait(wait);
    }
  }

  // Moves a partition to another node, and goes on producing until it is there.
  void moveOne(kj::WaitScope& wait, uint32_t partition) {
    auto produced = work.produced.size();
    auto began = timer.now();
    auto [source, target, epoch, moveId] = startMove(wait, partition);
    for (;;) {
      produceBatch(wait);
      produceBatch(wait, partition);  // by name, to the one that moves
      // The epoch counts changes of the owner; the planner may move it once more at any time.
      auto described = admin.describeTopic(wait, topic);
      if (described.getTopic().getPartitions()[partition].getEpoch() != epoch) break;
      check(timer.now() - began < PATIENCE, "move ", moveId, " does not end");
    }
    auto tookMs = (timer.now() - began) / kj::MILLISECONDS;
    std::string freeze;
    auto moves = admin.moves(wait);
    for (auto move : moves.getFinished()) {  // a bounded history
      if (move.getMoveId() != moveId) continue;
      check(move.getOutcome() == "flipped", "the move ended as ", move.getOutcome().cStr());
      freeze = join(", frozen for ", move.getFreezeUs() / 1000.0, " ms");
    }
    say("move: partition ", partition, " went from ", source, " to ", target, " in ", tookMs, " ms", freeze, "; ",
        work.produced.size() - produced, " records were produced meanwhile");
  }

  // A worker: leases, works, acks. Here and there it fails and gives the record back.
  void consumeAll(kj::WaitScope& wait) {
    auto lastProgress = timer.now();
    while (!work.allProduced || work.consumed.size() < work.produced.size()) {
      auto options = consumeFor(2'000);
      options.maxRecords = 200;
      auto deliveries = client.consume(wait, topic, options);
      std::vector<Delivery> done, refused;
      for (auto& one : deliveries) {
        bool fail = std::strtoul(one.record.value.c_str(), nullptr, 10) % 97 == 5;
        if (fail && work.givenBack.insert(one.record.value).second) {
          refused.push_back(one);
        } else {
          done.push_back(one);
        }
      }
      work.staleLeases += client.ack(wait, topic, done).size();
      work.staleLeases += client.nack(wait, topic, refused, 100).size();
      for (auto& one : done) {
        if (++work.consumed[one.record.value] == 1) lastProgress = timer.now();
        work.consumedKeys[one.record.value] = one.record.key;
      }
      check(timer.now() - lastProgress < PATIENCE, work.produced.size() - work.consumed.size(),
            " records do not come");
    }
  }

  // Everything was consumed, nothing else was; nothing is left; the logs say the same.
  void compare(kj::WaitScope& wait) {
    for (auto& [value, record] : work.produced) {
      check(work.consumed.count(value), "lost: ", value.substr(0, 8));
      check(work.consumedKeys[value] == record.key, "came with another key: ", value.substr(0, 8));
    }
    for (auto& [value, times] : work.consumed) {
      check(work.produced.count(value), "consumed and never produced: ", value.substr(0, 8));
    }
    std::map<std::string, int> replayed;
    for (uint32_t partition = 0; partition < PARTITIONS; ++partition) {
      std::vector<narad::Replayed> log;
      client.replay(wait, topic, partition, [&](const narad::Replayed& one) {
        log.push_back(one);
        auto& value = one.record.value;
        auto found = work.produced.find(value);
        if (found != work.produced.end()) {
          ++replayed[value];
          check(one.record.key == found->second.key, "another key in the log: ", value.substr(0, 8));
        }
        auto expected = work.placed.find({partition, one.offset});
        check(expected == work.placed.end() || expected->second == value, "another record is at ", partition, ":",
              one.offset);
      });
      if (!log.empty()) compareByTime(wait, partition, log);
    }
    size_t stored = 0;
    for (auto& [value, times] : replayed) stored += times;
    for (auto& [value, record] : work.produced) check(replayed.count(value), "not in the logs: ", value.substr(0, 8));
    bool inDoubt = false;
    for (auto& [code, times] : client.repeated()) inDoubt = inDoubt || narad::isUnknown(code);
    check(stored == work.produced.size() || inDoubt, stored - work.produced.size(),
          " records were stored twice without any retry");
    waitUntilAllIsAcked(wait);
    say("replay: ", stored, " records by offset and by time, all with the same content; nothing is left to ack");
  }

  // From the first record on that is not older than one in the middle.
  void compareByTime(kj::WaitScope& wait, uint32_t partition, const std::vector<narad::Replayed>& log) {
    auto since = log[log.size() / 2].record.timeMs;
    size_t next = 0;
    while (log[next].record.timeMs < since) ++next;
    auto each = [&](const narad::Replayed& one) {
      check(next < log.size() && one.offset == log[next].offset && one.record.value == log[next].record.value,
            "the replay of partition ", partition, " by time differs at ", one.offset);
      ++next;
    };
    client.replay(wait, topic, partition, each, 0, UINT64_MAX, since);
    check(next == log.size(), "the replay of partition ", partition, " by time ends early");
  }

  // Acks that went to a former owner in the last moment of a move may have been left behind.
  void waitUntilAllIsAcked(kj::WaitScope& wait) {
    for (auto began = timer.now();;) {
      auto left = client.consume(wait, topic);
      for (auto& one : left) check(work.produced.count(one.record.value), "a record that was never produced");
      client.ack(wait, topic, left);
      auto described = client.describeTopic(wait, topic);
      auto partitions = described.getTopic().getPartitions();
      bool all = true;
      for (auto partition : partitions) {
        all = all && partition.getKnown() && partition.getFrontier() == partition.getHwm();
      }
      if (all) return;
      check(timer.now() - began < PATIENCE, "not everything counts as acked");
      timer.afterDelay(200 * kj::MILLISECONDS).wait(wait);
    }
  }

  static narad::ConsumeOptions consumeFor(uint32_t waitMs, uint32_t visibilityMs = 0) {
    narad::ConsumeOptions options;
    options.waitMs = waitMs;
    options.visibilityMs = visibilityMs;
    return options;
  }

  static Delivery one(const std::vector<Delivery>& deliveries) {
    check(deliveries.size() == 1, "expected one record, got ", deliveries.size());
    return deliveries[0];
  }

  kj::AsyncIoContext& io;
  kj::Timer& timer;
  Client client;
  Client admin;  // for commands, so that what the other one counts is about records alone
  std::string topic;
  size_t count;
  Work work;
  std::mt19937_64 random{std::random_device{}()};
  kj::PromiseFulfillerPair<void> failure = kj::newPromiseAndFulfiller<void>();
  std::exception_ptr failed;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> out;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) {
    if (!part.empty()) out.push_back(part);
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  auto servers = argc > 1 ? split(argv[1]) : std::vector<std::string>();
  size_t count = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 10'000;
  if (argc > 3 || servers.empty() || count == 0) {
    std::cerr << "usage: example HOST:PORT[,HOST:PORT...] [RECORDS]\n";
    return 2;
  }
  try {
    auto io = kj::setupAsyncIo();
    Example(io, servers, count).run();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "c++: FAILED: " << error.what() << std::endl;
  } catch (const kj::Exception& error) {
    std::cerr << "c++: FAILED: " << kj::str(error).cStr() << std::endl;
  }
  return 1;
}
