@0xb1f3a6d2c04e7a91;
# What the client and the peer interface share: errors, records, partitions.
#
# Kept true: fields are only ever added; a number that stands here keeps its meaning for ever.

enum ErrorCode {
  # Stable codes. The table in README.md says which calls may be sent again as they are.
  ok @0;                  # never sent
  invalid @1;             # the request is malformed or out of range; do not retry
  unknownTopic @2;        # no topic of this name (or this incarnation)
  unknownPartition @3;    # partition index out of range
  topicExists @4;         # create of a name that is taken
  tooLarge @5;            # a record or batch over the limit; `detail` says which
  busy @6;                # a bounded queue is full; retry after `retryAfterMs`
  diskFull @7;            # no room; nothing was written
  notOwner @8;            # this node does not own the partition now; `node` may say who does
  frozen @9;              # the partition takes no appends for a moment (handoff)
  closed @10;             # the partition's log stopped after an I/O error; it is reopened by itself where it can be
  staleLease @11;         # the lease has ended (timeout, ack, or another owner)
  notLeader @12;          # metadata command must go to `node`
  unknownOutcome @13;     # it may or may not have happened; ask before undoing anything
  unavailable @14;        # needed peer or quorum cannot be reached now; retry
  refused @15;            # a guard of the metadata refused it; `detail` says which
  timeout @16;            # the deadline passed; like unknownOutcome for changes
  notMember @17;          # the caller (or callee) is not a member, or was removed
  unsupported @18;        # a newer peer's request
  internal @19;           # a bug or a failed disk here; see the node's log
  dead @20;               # the partition's owner is marked dead
  shuttingDown @21;       # the node is stopping; use another
  corrupt @22;            # bytes at the source failed their checksum
}

struct Error {
  code @0 :ErrorCode;
  message @1 :Text;       # one sentence for a person: what happened
  hint @2 :Text;          # one sentence: what to do next
  retryAfterMs @3 :UInt32;  # 0: no advice
  detail @4 :Text;        # machine-readable extra (JSON), may be empty
  node @5 :Text;          # `host:port` of the node to ask instead (leader, owner), may be empty
}

struct Record {
  key @0 :Data;           # absent (null) = no key
  value @1 :Data;
  timeMs @2 :UInt64;      # record time, ms since the Unix epoch; 0 = the node's clock decides. More than a
                          # day ahead of that, or longer ago than the topic's retention: invalid
}

struct Partition {
  topic @0 :UInt64;       # topic incarnation
  index @1 :UInt32;
}
