// A small client of Narad for C++17 with KJ: copy narad.h, narad.cc and what the Makefile does with
// the three .capnp files.
//
//   auto io = kj::setupAsyncIo();
//   narad::Client client(io, {"127.0.0.1:7420"});
//   client.produce(io.waitScope, "orders", {{"a cup", "customer-7"}});
//   auto deliveries = client.consume(io.waitScope, "orders");
//   client.ack(io.waitScope, "orders", deliveries);
//
// A call looks as if it blocked: it waits in the event loop through the WaitScope it is given. To do
// several things at a time, run each in a fiber of its own (kj::startFiber) and hand that fiber's
// WaitScope on; example.cc shows it. Typed errors can then be C++ exceptions, which a kj::Promise
// could not carry. One Client belongs to one thread.
//
// What this file keeps true:
//  * every call ends: with an answer, or with `Error` after `Options::giveUp`;
//  * what the interface allows to be sent again is sent again, after the pause that the node asks
//    for, and what it does not allow is not;
//  * one connection at a time; when it breaks, the next server is tried. Any node takes any call and
//    passes it on to the owners of the partitions, so a partition that moves needs no care here.

#pragma once

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "client.capnp.h"

namespace narad {

using schema::ErrorCode;

// What a node answered instead of doing it. `code` is explained in schema/README.md.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, std::string hint = "", uint32_t retryAfterMs = 0,
        std::string detail = "");
  explicit Error(schema::Error::Reader reader);

  ErrorCode code;
  std::string message;
  std::string hint;
  uint32_t retryAfterMs;
  std::string detail;
};

// Whether a code leaves open if the change happened. So does a connection that breaks.
bool isUnknown(ErrorCode code);

// The name of a code, as in the table: "unknownTopic".
std::string nameOf(ErrorCode code);

struct Record {
  std::string value;
  std::optional<std::string> key = {};  // records of one key go to one partition; none is not the empty key
  uint64_t timeMs = 0;                  // since 1970; 0: the node's clock decides
};

// What became of one record.
struct Placed {
  bool committed = false;      // false and no error: stored, and on its way to its partition's owner
  uint32_t partition = 0;      // these two only if committed
  uint64_t offset = 0;
  std::optional<Error> error;  // not stored
};

// Some records of a batch were refused; `results` says which, in order.
class ProduceError : public Error {
 public:
  explicit ProduceError(std::vector<Placed> results);
  std::vector<Placed> results;
};

struct Lease {
  uint32_t partition;
  uint64_t offset;
  uint64_t nonce;
};

struct Delivery {
  Record record;
  Lease lease;
  uint32_t deliveries;  // by this owner, this one included
};

struct Replayed {
  uint64_t offset;
  Record record;
};

// A delivery that could not be settled, and why: usually its lease had ended, and it comes again.
using Unsettled = std::vector<std::pair<Delivery, Error>>;

struct Options {
  kj::Duration call = 10 * kj::SECONDS;    // one attempt, on top of what a long poll waits
  kj::Duration giveUp = 60 * kj::SECONDS;  // all attempts together
};

struct ConsumeOptions {
  uint32_t maxRecords = 100;
  uint32_t maxBytes = 1 << 20;
  uint32_t waitMs = 0;        // how long to wait for the first record, at most 60000
  uint32_t visibilityMs = 0;  // how long the records are yours; 0: the topic's setting
};

class Client {
 public:
  // Connects when the first call is made. `servers` are "host:port".
  Client(kj::AsyncIoContext& io, std::vector<std::string> servers, Options options = {});

  // Stores a batch (at most 10000 records and 4 MiB); each record is on a disk when this returns.
  // Partition -1: a key decides, and else the node. What was in doubt is sent again, so a record
  // can be stored twice. Throws ProduceError if any record was refused.
  std::vector<Placed> produce(kj::WaitScope& wait, const std::string& topic,
                              const std::vector<Record>& records, int32_t partition = -1);

  // Leases records of any partition; empty if none came in time.
  std::vector<Delivery> consume(kj::WaitScope& wait, const std::string& topic, ConsumeOptions options = {});

  // Done with these.
  Unsettled ack(kj::WaitScope& wait, const std::string& topic, const std::vector<Delivery>& deliveries);
  // Gives these back; they are delivered again after delayMs.
  Unsettled nack(kj::WaitScope& wait, const std::string& topic, const std::vector<Delivery>& deliveries,
                 uint32_t delayMs = 0);
  // Keeps these for visibilityMs from now.
  Unsettled extend(kj::WaitScope& wait, const std::string& topic, const std::vector<Delivery>& deliveries,
                   uint32_t visibilityMs);

  // Reads one partition, without leases, from the offset `from` up to `to` (exclusive) or to what is
  // visible when it gets there. With `fromTimeMs` it begins at the first record from `from` on whose
  // time is that or later.
  void replay(kj::WaitScope& wait, const std::string& topic, uint32_t partition,
              const std::function<void(const Replayed&)>& each, uint64_t from = 0, uint64_t to = UINT64_MAX,
              uint64_t fromTimeMs = 0);

  // Topics and the cluster. What comes back is read as the schema says:
  // client.describeTopic(wait, "orders").getTopic().getPartitions()[0].getOwner()
  using Node = schema::Node;
  capnp::Response<Node::CreateTopicResults> createTopic(
      kj::WaitScope& wait, const std::string& topic, uint32_t partitions,
      const std::function<void(schema::TopicSettings::Builder)>& settings = {});
  // Changes the settings named in `change` to what `settings` writes, and leaves the others.
  capnp::Response<Node::AlterTopicResults> alterTopic(
      kj::WaitScope& wait, const std::string& topic, const std::vector<schema::Setting>& change,
      const std::function<void(schema::TopicSettings::Builder)>& settings);
  capnp::Response<Node::DescribeTopicResults> describeTopic(kj::WaitScope& wait, const std::string& topic);
  void deleteTopic(kj::WaitScope& wait, const std::string& topic);
  capnp::Response<Node::MembersResults> members(kj::WaitScope& wait);
  capnp::Response<Node::MovesResults> moves(kj::WaitScope& wait);
  capnp::Response<Node::InfoResults> info(kj::WaitScope& wait);
  // Starts to move a partition to a node; returns the move's id.
  uint64_t moveTo(kj::WaitScope& wait, const std::string& topic, uint32_t partition, const std::string& nodeId);

  // The connected node, for calls that this class has not.
  Node::Client node(kj::WaitScope& wait);

  // What was sent again, and why: codes and how often, of calls and of single records.
  const std::map<ErrorCode, uint64_t>& repeated() const { return repeated_; }

  // The same of single leases: one that is settled while its partition moves is settled again.
  const std::map<ErrorCode, uint64_t>& settledAgain() const { return settledAgain_; }

 private:
  struct Connection;
  struct Again;
  enum class Repeat { NotIfUnknown, EvenIfUnknown };

  template <typename Results, typename Send>
  capnp::Response<Results> call(kj::WaitScope& wait, Repeat repeat, Send&& send, uint32_t waitMs = 0);
  template <typename Attempt>
  void each(kj::WaitScope& wait, size_t count, std::map<ErrorCode, uint64_t>& counts, Attempt&& attempt);
  template <typename Results, typename NewRequest>
  Unsettled settle(kj::WaitScope& wait, const std::vector<Delivery>& deliveries, NewRequest&& newRequest);
  std::shared_ptr<Connection> connected(kj::WaitScope& wait);
  void drop(const std::shared_ptr<Connection>& connection);

  kj::Network& network_;
  kj::Timer& timer_;
  std::vector<std::string> servers_;
  Options options_;
  size_t next_ = 0;
  std::map<ErrorCode, uint64_t> repeated_;
  std::map<ErrorCode, uint64_t> settledAgain_;
  std::shared_ptr<Connection> connection_;
};

}  // namespace narad
