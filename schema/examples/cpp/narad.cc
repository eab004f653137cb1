// The client of narad.h: attempts and their outcomes at the end, the calls themselves before.

#include "narad.h"

#include <capnp/schema.h>

#include <algorithm>
#include <type_traits>

namespace narad {
namespace {

constexpr kj::Duration PAUSE = 50 * kj::MILLISECONDS;  // before another attempt, without advice
constexpr kj::Duration PAUSE_MAX = 1 * kj::SECONDS;
constexpr kj::Duration CONNECT = 2 * kj::SECONDS;

// Changed nothing; may be sent again as it is, soon or at another node.
bool isTryAgain(ErrorCode code) {
  switch (code) {
    case ErrorCode::BUSY:
    case ErrorCode::DISK_FULL:
    case ErrorCode::NOT_OWNER:
    case ErrorCode::FROZEN:
    case ErrorCode::CLOSED:
    case ErrorCode::NOT_LEADER:
    case ErrorCode::UNAVAILABLE:
    case ErrorCode::SHUTTING_DOWN:
    case ErrorCode::DEAD:
      return true;
    default:
      return false;
  }
}

// Another node may do better than the same one.
bool isElsewhere(ErrorCode code) {
  return code == ErrorCode::DISK_FULL || code == ErrorCode::SHUTTING_DOWN || code == ErrorCode::INTERNAL;
}

capnp::Data::Reader bytes(const std::string& text) {
  return {reinterpret_cast<const kj::byte*>(text.data()), text.size()};
}

std::string text(capnp::Data::Reader data) {
  return {reinterpret_cast<const char*>(data.begin()), data.size()};
}

std::string text(capnp::Text::Reader reader) { return {reader.begin(), reader.size()}; }

void write(schema::Record::Builder out, const Record& record) {
  if (record.key) out.setKey(bytes(*record.key));
  out.setValue(bytes(record.value));
  out.setTimeMs(record.timeMs);
}

Record read(schema::Record::Reader in) {
  Record record{text(in.getValue()), {}, in.getTimeMs()};
  if (in.hasKey()) record.key = text(in.getKey());
  return record;
}

// `Results` without an `error` (of `info`) cannot fail.
template <typename Results, typename = void>
struct HasError : std::false_type {};
template <typename Results>
struct HasError<Results, std::void_t<decltype(std::declval<typename Results::Reader>().hasError())>>
    : std::true_type {};

std::string summary(const std::vector<Placed>& results, const Error& first) {
  auto refused = std::count_if(results.begin(), results.end(), [](auto& one) { return bool(one.error); });
  return std::to_string(refused) + " of " + std::to_string(results.size()) +
         " records were refused, the first because: " + first.message;
}

const Error& firstError(const std::vector<Placed>& results) {
  return *std::find_if(results.begin(), results.end(), [](auto& one) { return bool(one.error); })->error;
}

}  // namespace

bool isUnknown(ErrorCode code) {
  return code == ErrorCode::UNKNOWN_OUTCOME || code == ErrorCode::TIMEOUT || code == ErrorCode::INTERNAL;
}

std::string nameOf(ErrorCode code) {
  auto number = static_cast<uint16_t>(code);
  for (auto enumerant : capnp::Schema::from<ErrorCode>().getEnumerants()) {
    if (enumerant.getOrdinal() == number) return enumerant.getProto().getName().cStr();
  }
  return "code" + std::to_string(number);  // of a newer node
}

Error::Error(ErrorCode code, const std::string& message, std::string hint, uint32_t retryAfterMs,
             std::string detail)
    : std::runtime_error(message + " (" + nameOf(code) + ")" + (hint.empty() ? "" : "; " + hint)),
      code(code),
      message(message),
      hint(std::move(hint)),
      retryAfterMs(retryAfterMs),
      detail(std::move(detail)) {}

Error::Error(schema::Error::Reader reader)
    : Error(reader.getCode(), text(reader.getMessage()), text(reader.getHint()), reader.getRetryAfterMs(),
            text(reader.getDetail())) {}

ProduceError::ProduceError(std::vector<Placed> all)
    : Error(firstError(all).code, summary(all, firstError(all)), firstError(all).hint),
      results(std::move(all)) {}

// ---- records

// What of a batch is to be sent once more, and how.
struct Client::Again {
  std::vector<size_t> left;
  kj::Duration advice = 0 * kj::MILLISECONDS;
  bool elsewhere = false;
  std::map<ErrorCode, uint64_t> codes;

  void add(size_t index, const Error& error) {
    if (!isTryAgain(error.code) && !isUnknown(error.code)) return;
    left.push_back(index);
    advice = std::max(advice, error.retryAfterMs * kj::MILLISECONDS);
    elsewhere = elsewhere || isElsewhere(error.code);
    ++codes[error.code];
  }
};

std::vector<Placed> Client::produce(kj::WaitScope& wait, const std::string& topic,
                                    const std::vector<Record>& records, int32_t partition) {
  std::vector<Placed> results(records.size());
  each(wait, records.size(), repeated_, [&](const std::vector<size_t>& left, Again& again) {
    auto answer = call<Node::ProduceResults>(wait, Repeat::EvenIfUnknown, [&](Node::Client& node) {
      auto request = node.produceRequest();
      request.setTopic(topic);
      request.setPartition(partition);
      auto list = request.initRecords(left.size());
      for (size_t i = 0; i < left.size(); ++i) write(list[i], records[left[i]]);
      return request.send();
    });
    for (size_t i = 0; i < left.size(); ++i) {
      auto result = answer.getResults()[i];
      Placed placed;
      if (result.isCommitted()) {
        auto at = result.getCommitted();
        placed = {true, at.getPartition(), at.getOffset(), {}};
      } else if (result.isError()) {
        placed.error.emplace(result.getError());
        again.add(left[i], *placed.error);
      }
      results[left[i]] = std::move(placed);
    }
  });
  if (std::any_of(results.begin(), results.end(), [](auto& one) { return bool(one.error); })) {
    throw ProduceError(std::move(results));
  }
  return results;
}

std::vector<Delivery> Client::consume(kj::WaitScope& wait, const std::string& topic, ConsumeOptions options) {
  // Records leased by a lost answer come again when their leases end.
  auto send = [&](Node::Client& node) {
    auto request = node.consumeRequest();
    request.setTopic(topic);
    request.setMaxRecords(options.maxRecords);
    request.setMaxBytes(options.maxBytes);
    request.setWaitMs(options.waitMs);
    request.setVisibilityMs(options.visibilityMs);
    return request.send();
  };
  auto answer = call<Node::ConsumeResults>(wait, Repeat::EvenIfUnknown, send, options.waitMs);
  std::vector<Delivery> out;
  for (auto one : answer.getRecords()) {
    auto lease = one.getLease();
    out.push_back({read(one.getRecord()),
                   {lease.getPartition(), lease.getOffset(), lease.getNonce()},
                   one.getDeliveries()});
  }
  return out;
}

Unsettled Client::ack(kj::WaitScope& wait, const std::string& topic, const std::vector<Delivery>& deliveries) {
  return settle<Node::AckResults>(wait, deliveries, [&](Node::Client& node) {
    auto request = node.ackRequest();
    request.setTopic(topic);
    return request;
  });
}

Unsettled Client::nack(kj::WaitScope& wait, const std::string& topic, const std::vector<Delivery>& deliveries,
                       uint32_t delayMs) {
  return settle<Node::NackResults>(wait, deliveries, [&](Node::Client& node) {
    auto request = node.nackRequest();
    request.setTopic(topic);
    request.setDelayMs(delayMs);
    return request;
  });
}

Unsettled Client::extend(kj::WaitScope& wait, const std::string& topic, const std::vector<Delivery>& deliveries,
                         uint32_t visibilityMs) {
  return settle<Node::ExtendResults>(wait, deliveries, [&](Node::Client& node) {
    auto request = node.extendRequest();
    request.setTopic(topic);
    request.setVisibilityMs(visibilityMs);
    return request;
  });
}

void Client::replay(kj::WaitScope& wait, const std::string& topic, uint32_t partition,
                    const std::function<void(const Replayed&)>& each, uint64_t from, uint64_t to,
                    uint64_t fromTimeMs) {
  while (from < to) {
    auto answer = call<Node::ReplayResults>(wait, Repeat::EvenIfUnknown, [&](Node::Client& node) {
      auto request = node.replayRequest();
      request.setTopic(topic);
      request.setPartition(partition);
      request.setFrom(from);
      request.setTo(to);
      request.setFromTimeMs(fromTimeMs);
      return request.send();
    });
    fromTimeMs = 0;  // the rest is read by offset
    for (auto one : answer.getRecords()) each({one.getOffset(), read(one.getRecord())});
    if (answer.getNext() >= std::min(to, answer.getHwm()) || answer.getNext() == from) return;
    from = answer.getNext();
  }
}

// ---- topics and the cluster

capnp::Response<Client::Node::CreateTopicResults> Client::createTopic(
    kj::WaitScope& wait, const std::string& topic, uint32_t partitions,
    const std::function<void(schema::TopicSettings::Builder)>& settings) {
  return call<Node::CreateTopicResults>(wait, Repeat::NotIfUnknown, [&](Node::Client& node) {
    auto request = node.createTopicRequest();
    request.setName(topic);
    request.setPartitions(partitions);
    if (settings) settings(request.initSettings());
    return request.send();
  });
}

capnp::Response<Client::Node::AlterTopicResults> Client::alterTopic(
    kj::WaitScope& wait, const std::string& topic, const std::vector<schema::Setting>& change,
    const std::function<void(schema::TopicSettings::Builder)>& settings) {
  return call<Node::AlterTopicResults>(wait, Repeat::EvenIfUnknown, [&](Node::Client& node) {
    auto request = node.alterTopicRequest();
    request.setName(topic);
    settings(request.initSettings());
    auto list = request.initChange(change.size());
    for (size_t i = 0; i < change.size(); ++i) list.set(i, change[i]);
    return request.send();
  });
}

capnp::Response<Client::Node::DescribeTopicResults> Client::describeTopic(kj::WaitScope& wait,
                                                                         const std::string& topic) {
  return call<Node::DescribeTopicResults>(wait, Repeat::EvenIfUnknown, [&](Node::Client& node) {
    auto request = node.describeTopicRequest();
    request.setName(topic);
    return request.send();
  });
}

void Client::deleteTopic(kj::WaitScope& wait, const std::string& topic) {
  call<Node::DeleteTopicResults>(wait, Repeat::NotIfUnknown, [&](Node::Client& node) {
    auto request = node.deleteTopicRequest();
    request.setName(topic);
    return request.send();
  });
}

capnp::Response<Client::Node::MembersResults> Client::members(kj::WaitScope& wait) {
  return call<Node::MembersResults>(wait, Repeat::EvenIfUnknown,
                                    [](Node::Client& node) { return node.membersRequest().send(); });
}

capnp::Response<Client::Node::MovesResults> Client::moves(kj::WaitScope& wait) {
  return call<Node::MovesResults>(wait, Repeat::EvenIfUnknown,
                                  [](Node::Client& node) { return node.movesRequest().send(); });
}

capnp::Response<Client::Node::InfoResults> Client::info(kj::WaitScope& wait) {
  return call<Node::InfoResults>(wait, Repeat::EvenIfUnknown,
                                 [](Node::Client& node) { return node.infoRequest().send(); });
}

uint64_t Client::moveTo(kj::WaitScope& wait, const std::string& topic, uint32_t partition,
                        const std::string& nodeId) {
  auto answer = call<Node::MoveToResults>(wait, Repeat::NotIfUnknown, [&](Node::Client& node) {
    auto request = node.moveToRequest();
    request.setTopic(topic);
    request.setPartition(partition);
    request.setTo(nodeId);
    return request.send();
  });
  return answer.getMoveId();
}

// ---- underneath

struct Client::Connection {
  explicit Connection(kj::Own<kj::AsyncIoStream> connected)
      : stream(kj::mv(connected)), rpc(*stream), node(rpc.bootstrap().castAs<Node>()) {}

  kj::Own<kj::AsyncIoStream> stream;
  capnp::TwoPartyClient rpc;
  Node::Client node;
};

Client::Client(kj::AsyncIoContext& io, std::vector<std::string> servers, Options options)
    : network_(io.provider->getNetwork()),
      timer_(io.provider->getTimer()),
      servers_(std::move(servers)),
      options_(options) {
  if (servers_.empty()) throw std::invalid_argument("a client needs the address of at least one node");
}

Client::Node::Client Client::node(kj::WaitScope& wait) { return connected(wait)->node; }

std::shared_ptr<Client::Connection> Client::connected(kj::WaitScope& wait) {
  if (connection_) return connection_;
  auto& server = servers_[next_++ % servers_.size()];
  auto stream = timer_
                    .timeoutAfter(CONNECT, network_.parseAddress(server).then(
                                               [](kj::Own<kj::NetworkAddress> address) {
                                                 auto connecting = address->connect();
                                                 return connecting.attach(kj::mv(address));
                                               }))
                    .wait(wait);
  // Another fiber may have been faster.
  if (!connection_) connection_ = std::make_shared<Connection>(kj::mv(stream));
  return connection_;
}

void Client::drop(const std::shared_ptr<Connection>& connection) {
  if (connection_ == connection) connection_ = nullptr;
}

// One call until there is an answer. With Repeat::NotIfUnknown a lost answer is an error, for the
// call may have been carried out: look before you send it again.
template <typename Results, typename Send>
capnp::Response<Results> Client::call(kj::WaitScope& wait, Repeat repeat, Send&& send, uint32_t waitMs) {
  auto extra = waitMs * kj::MILLISECONDS;
  auto giveUp = timer_.now() + options_.giveUp + extra;
  auto pause = PAUSE;
  for (;;) {
    std::shared_ptr<Connection> connection;
    std::optional<Error> error;
    try {
      connection = connected(wait);
      kj::Promise<capnp::Response<Results>> sent = send(connection->node);
      auto answer = timer_.timeoutAfter(options_.call + extra, kj::mv(sent)).wait(wait);
      if constexpr (!HasError<Results>::value) {
        return answer;
      } else {
        if (!answer.hasError()) return answer;
        error.emplace(answer.getError());
        if (isElsewhere(error->code)) drop(connection);
      }
    } catch (const kj::Exception& broken) {
      std::string why(broken.getDescription().cStr());
      if (broken.getType() == kj::Exception::Type::UNIMPLEMENTED) {
        error.emplace(ErrorCode::UNSUPPORTED, "the node is too old for this call: " + why);
      } else if (connection) {
        drop(connection);
        error.emplace(ErrorCode::UNKNOWN_OUTCOME, "the answer of a node was lost: " + why,
                      "look at the state before you try again");
      } else {
        error.emplace(ErrorCode::UNAVAILABLE, "no node answers: " + why, "are the addresses right?");
      }
    }
    // No waiting within the catch block: another fiber would find this exception as its own.
    bool again = isTryAgain(error->code) || (repeat == Repeat::EvenIfUnknown && isUnknown(error->code));
    if (!again || timer_.now() > giveUp) throw *error;
    ++repeated_[error->code];
    timer_.afterDelay(std::max(pause, error->retryAfterMs * kj::MILLISECONDS)).wait(wait);
    pause = std::min(pause * 2, PAUSE_MAX);
  }
}

// Sends the parts 0 to `count` of a batch, and those again that are refused with a code that allows
// it, until nothing is left or the time is over. `attempt` keeps the results.
template <typename Attempt>
void Client::each(kj::WaitScope& wait, size_t count, std::map<ErrorCode, uint64_t>& counts,
                  Attempt&& attempt) {
  std::vector<size_t> left(count);
  for (size_t i = 0; i < count; ++i) left[i] = i;
  auto giveUp = timer_.now() + options_.giveUp;
  auto pause = PAUSE;
  while (!left.empty()) {
    Again again;
    attempt(left, again);
    left = std::move(again.left);
    if (left.empty() || timer_.now() > giveUp) return;
    for (auto& [code, times] : again.codes) counts[code] += times;
    if (again.elsewhere) connection_ = nullptr;
    timer_.afterDelay(std::max(pause, again.advice)).wait(wait);
    pause = std::min(pause * 2, PAUSE_MAX);
  }
}

template <typename Results, typename NewRequest>
Unsettled Client::settle(kj::WaitScope& wait, const std::vector<Delivery>& deliveries,
                         NewRequest&& newRequest) {
  std::vector<std::optional<Error>> errors(deliveries.size());
  each(wait, deliveries.size(), settledAgain_, [&](const std::vector<size_t>& left, Again& again) {
    // Settling twice does no harm.
    auto answer = call<Results>(wait, Repeat::EvenIfUnknown, [&](Node::Client& node) {
      auto request = newRequest(node);
      auto list = request.initLeases(left.size());
      for (size_t i = 0; i < left.size(); ++i) {
        auto& lease = deliveries[left[i]].lease;
        list[i].setPartition(lease.partition);
        list[i].setOffset(lease.offset);
        list[i].setNonce(lease.nonce);
      }
      return request.send();
    });
    auto results = answer.getResults();
    for (size_t i = 0; i < left.size(); ++i) {
      auto& error = errors[left[i]];
      error.reset();
      if (!results[i].isError()) continue;
      error.emplace(results[i].getError());
      again.add(left[i], *error);
    }
  });
  Unsettled out;
  for (size_t i = 0; i < deliveries.size(); ++i) {
    if (errors[i]) out.emplace_back(deliveries[i], *errors[i]);
  }
  return out;
}

}  // namespace narad
