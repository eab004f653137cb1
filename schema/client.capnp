@0xd8a90c57e1b24f63;
# The client interface: the bootstrap capability of every node's listener.
#
# Kept true: every result carries `error`, absent (null) when the call succeeded; no call kills the
# connection; units stand in the names.

using Common = import "common.capnp";
using Peer = import "peer.capnp";

interface Node {
  info @0 () -> (info :NodeInfo);
  # Who answers: id, version, limits.

  produce @1 (topic :Text, records :List(Common.Record), partition :Int32 = -1, hops :UInt8 = 0)
      -> (results :List(ProduceResult), error :Common.Error);
  # Appends a batch durably before it answers. partition -1: keys hash, unkeyed records stick to an
  # open local partition. One result a record, in order. At most 10000 records and 4 MiB a call.
  # hops: how many nodes have passed the records on already; 0 for clients. A node that is leaving
  # passes records on, and refuses (unavailable) those that were passed on often enough.

  consume @2 (topic :Text, maxRecords :UInt32 = 100, maxBytes :UInt32 = 1048576, waitMs :UInt32 = 0,
              visibilityMs :UInt32 = 0, localOnly :Bool = false)
      -> (records :List(Delivery), error :Common.Error, receipt :Receipt);
  # Leases up to maxRecords. waitMs > 0 parks until something is there (at most 60000). visibilityMs
  # 0: the topic's setting; at most 43200000 (12 h), more is invalid. localOnly: only partitions that
  # this node owns. receipt: see there; null when nothing was leased.

  ack @3 (topic :Text, leases :List(Lease), localOnly :Bool = false)
      -> (results :List(LeaseResult), error :Common.Error);
  # One result a lease, in order. Each lease goes to its partition's owner; localOnly: a lease of
  # another node's partition is answered notOwner instead.
  nack @4 (topic :Text, leases :List(Lease), delayMs :UInt32 = 0, localOnly :Bool = false)
      -> (results :List(LeaseResult), error :Common.Error);
  # Gives records back for delivery after delayMs: at most 43200000 (12 h), more is invalid.
  extend @5 (topic :Text, leases :List(Lease), visibilityMs :UInt32, localOnly :Bool = false)
      -> (results :List(LeaseResult), error :Common.Error);
  # Keeps leases for visibilityMs from now: 1 to 43200000 (12 h), anything else is invalid.

  replay @6 (topic :Text, partition :UInt32, from :UInt64, to :UInt64 = 0xffffffffffffffff,
             maxRecords :UInt32 = 1000, maxBytes :UInt32 = 1048576, localOnly :Bool = false,
             fromTimeMs :UInt64 = 0)
      -> (records :List(Replayed), next :UInt64, start :UInt64, hwm :UInt64, skipped :UInt64,
          error :Common.Error);
  # Reads without leases. `next` is where the next call goes on; done when next >= min(to, hwm).
  # fromTimeMs > 0: begins at the first record whose time is that or later, if that is behind `from`.

  createTopic @7 (name :Text, partitions :UInt32, parent :Text, settings :TopicSettings)
      -> (topic :Topic, error :Common.Error);
  listTopics @8 () -> (topics :List(Topic), error :Common.Error);
  describeTopic @9 (name :Text) -> (topic :Topic, error :Common.Error);
  deleteTopic @10 (name :Text) -> (error :Common.Error);

  members @11 () -> (members :List(Member), leader :Text, term :UInt64, applied :UInt64,
                     error :Common.Error, local :Bool);
  # local: what the asked node has applied so far, because the leader could not be asked. It may be old.
  moves @12 () -> (moves :List(Move), finished :List(Move), error :Common.Error);
  # Running moves, and the latest finished ones (a bounded history of this cluster's targets).
  plan @13 () -> (steps :List(PlanStep), notes :List(Text), error :Common.Error,
                  later :List(PlanStep), totalSteps :UInt64, totalBytes :UInt64);
  # steps: what is started now; later: what waits for running moves to end. At most 1000 together are told;
  # totalSteps counts all that have to move, those included of which the leader has not been told enough yet to
  # plan them; totalBytes are their bytes as far as they are known.
  moveTo @14 (topic :Text, partition :UInt32, to :Text) -> (moveId :UInt64, error :Common.Error);
  cancelMove @15 (topic :Text, partition :UInt32) -> (error :Common.Error);
  decommission @16 (node :Text, cancel :Bool = false, dryRun :Bool = false)
      -> (steps :List(PlanStep), notes :List(Text), error :Common.Error, blocked :List(Text),
          later :List(PlanStep), totalSteps :UInt64, totalBytes :UInt64);
  # blocked: what keeps it from ending until somebody does something about it, a sentence each.
  throttle @17 (bytesPerS :UInt64 = 0, set :Bool = true, adaptive :Bool = false)
      -> (bytesPerS :UInt64, error :Common.Error, adaptive :Bool);
  # 0 = unlimited. set = false only reads. adaptive (the default of a cluster): each node copies as fast as
  # its own produce latency allows; bytesPerS is 0 then.

  locate @18 (topic :Text) -> (topic :Topic, nodes :List(Member), error :Common.Error);
  # What a client needs to send to owners directly; cheap, from local metadata.

  peer @19 (node :Text, incarnation :UInt64, cluster :UInt64)
      -> (peer :Peer.Peer, error :Common.Error);
  # The interface between nodes. cluster: the asking node's, 0 while it has not learnt it; a node of
  # another cluster refuses (detail "other_cluster").

  alterTopic @20 (name :Text, settings :TopicSettings, change :List(Setting))
      -> (topic :Topic, error :Common.Error);
  # Changes the named settings of a living topic to the values in `settings` (0 or empty: the
  # default, or none) and leaves the others. All at once; in force on every node within moments.

  pauseRebalance @21 (paused :Bool = true, set :Bool = true)
      -> (paused :Bool, error :Common.Error);
  # While paused no move is started; running ones go on. set = false only reads.

  forget @22 (node :Text, acceptLoss :Bool = false, deaths :UInt64)
      -> (loss :Loss, done :Bool, error :Common.Error);
  # What is lost when a dead node is given up for good; with acceptLoss it is given up: its
  # partitions begin anew, empty, on other nodes. deaths: Loss.deaths of the list whose loss is accepted;
  # refused when the node was heard since. 0: the node as it is now, whatever that loses.

  farewell @23 (node :Text, cluster :UInt64, recovery :UInt64)
      -> (removed :Bool, topics :List(Topic), error :Common.Error, lost :Bool);
  # What hands over the disk of a node that is no member any more: whether this cluster has removed
  # that node, and all topics, without figures. Both as a leader has just confirmed them; unavailable
  # where none has. lost: it was a member only in what a replaced quorum alone knew, as the cluster that the
  # disk names and the latest replacement in its log say (each 0: none).
}

interface Receipt {
  # Proof that the answer of a consume call arrived. A client has nothing to do: the capability is
  # released with the answer that brought it. When the connection ends before that, nobody has the
  # records, and the node gives their leases back at once.
}

struct NodeInfo {
  id @0 :Text;
  version @1 :Text;
  shards @2 :UInt32;
  maxRecordBytes @3 :UInt32;
  maxBatchBytes @4 :UInt32;
  maxBatchRecords @5 :UInt32;
  incarnation @6 :UInt64;
}

struct ProduceResult {
  union {
    committed :group {
      partition @0 :UInt32;
      offset @1 :UInt64;
    }
    accepted @2 :Void;     # durable here; will be delivered to its partition's owner
    error @3 :Common.Error;
  }
}

struct Lease {
  partition @0 :UInt32;
  offset @1 :UInt64;
  nonce @2 :UInt64;
}

struct Delivery {
  lease @0 :Lease;
  record @1 :Common.Record;
  deliveries @2 :UInt32;   # how many times it has been delivered by this owner, this one included
  topicId @3 :UInt64;
}

struct LeaseResult {
  union {
    ok @0 :Void;
    error @1 :Common.Error;
  }
}

struct Replayed {
  offset @0 :UInt64;
  record @1 :Common.Record;
}

struct TopicSettings {
  visibilityMs @0 :UInt64;       # 0: default
  retentionMs @1 :UInt64;        # 0: keep all
  retentionBytes @2 :UInt64;     # 0: keep all
  maxRecordBytes @3 :UInt32;     # 0: default
  maxDeliveries @4 :UInt32;      # 0: no limit; a limit needs a deadLetter
  deadLetter @5 :Text;           # empty: none
  maxLeases @6 :UInt32;          # records of a partition that are out at a time; 0: default
  maxAckedAhead @7 :UInt32;      # records of a partition acked out of order; 0: default
}

enum Setting {
  # Names of the fields of TopicSettings, for alterTopic.
  visibilityMs @0;
  retentionMs @1;
  retentionBytes @2;
  maxRecordBytes @3;
  maxDeliveries @4;
  deadLetter @5;
  maxLeases @6;
  maxAckedAhead @7;
}

struct Topic {
  id @0 :UInt64;
  name @1 :Text;
  parent @2 :Text;
  settings @3 :TopicSettings;
  partitions @4 :List(PartitionInfo);
}

struct PartitionInfo {
  index @0 :UInt32;
  owner @1 :Text;
  epoch @2 :UInt64;
  target @3 :Text;         # empty when stable
  moveId @4 :UInt64;
  handoffId @5 :UInt64;    # 0: none
  start @6 :UInt64;        # the next five: 0 where the answering node could not ask the owner
  hwm @7 :UInt64;
  frontier @8 :UInt64;
  bytes @9 :UInt64;
  known @10 :Bool;         # whether they were asked
}

struct Member {
  id @0 :Text;
  addr @1 :Text;
  bulkAddr @2 :Text;
  httpAddr @3 :Text;
  status @4 :Text;         # alive | dead
  draining @5 :Bool;
  role @6 :Text;           # leader | voter | learner | none
  owned @7 :UInt32;
  inbound @8 :UInt32;
  outbound @9 :UInt32;
  shards @10 :UInt32;
  version @11 :Text;
  diskFreeBytes @12 :UInt64;
  diskUsedBytes @13 :UInt64;
  undispatched @14 :UInt64;   # records in its ingress WALs, as last told; at the leader only
  held @15 :Text;          # what holds its removal back; empty when nothing does
  incarnation @16 :UInt64;
  untold @17 :Bool;        # it has told the present leader nothing yet: disk bytes and undispatched are not known
}

struct Move {
  topic @0 :Text;
  partition @1 :UInt32;
  source @2 :Text;
  target @3 :Text;
  moveId @4 :UInt64;
  phase @5 :Text;          # waiting open catch_up begin_handoff freeze finalize install flip
                           # flip_unknown roll_back serve done failed.
                           # flip_unknown: the answer to the flip was lost, the metadata is being asked.
                           # roll_back: the flip was refused for good, the copy goes back into staging.
  bytesDone @6 :UInt64;
  bytesLeft @7 :UInt64;
  bytesPerS @8 :UInt64;    # B of the latest pass, of all copying so far while passes are short; 0: none yet
  writeBytesPerS @9 :UInt64;  # W of the source
  passes @10 :UInt32;
  converged @11 :Bool;
  elapsedMs @12 :UInt64;
  freezeUs @13 :UInt64;
  split @14 :FreezeSplit;
  lastError @15 :Text;
  handoffId @16 :UInt64;
  outcome @17 :Text;       # finished moves: flipped | promoted | superseded | cancelled | no_room.
                           # promoted: the source was dead, and the copy took its place.
                           # cancelled: the topic is gone.
  tails @18 :List(UInt64); # bytes left at the end of each pass
  manual @19 :Bool;
  frozenForUs @20 :UInt64; # while the source is frozen: since it was asked to freeze; else 0
}

struct FreezeSplit {
  # Parts of one freeze, in microseconds.
  settleUs @0 :UInt64;
  drainUs @1 :UInt64;
  persistUs @2 :UInt64;
  installUs @3 :UInt64;
  flipUs @4 :UInt64;
  takeoverUs @5 :UInt64;
}

struct PlanStep {
  topic @0 :Text;
  partition @1 :UInt32;
  from @2 :Text;
  to @3 :Text;
  reason @4 :Text;
  bytes @5 :UInt64;        # size of the partition as its owner told last; 0: empty (older nodes: or unknown)
}

struct Loss {
  # What giving up a dead node loses.
  partitions @0 :List(LostPartition);
  inbound @1 :UInt32;      # moves to it that are cancelled
  undispatched @2 :UInt64; # accepted records in its ingress WALs, as it told last
  told @3 :Bool;           # whether it has told this leader
  notes @4 :List(Text);    # what speaks against it now, and what to do first
  copies @5 :List(LostCopy); # old copies on its disk that were not salvaged and reclaimed yet
  deaths @6 :UInt64;       # how many times it has been marked dead
}

struct LostCopy {
  # A copy of an ended epoch. Its records from `from` on may be on that disk only.
  topic @0 :Text;
  partition @1 :UInt32;
  epoch @2 :UInt64;        # the one that ended
  end @3 :Text;            # completed | promoted | forgotten
  from @4 :UInt64;         # completed: the offset up to which all went along; promoted: the one up to which
                           # the owner had told its records; forgotten: 0, all that was not acknowledged
}

struct LostPartition {
  topic @0 :Text;
  partition @1 :UInt32;
  epoch @2 :UInt64;
  bytes @3 :UInt64;        # as told last; 0: unknown, unless bytesTold
  target @4 :Text;         # where a copy of it is under way, which would be given up too; else empty
  bytesTold @5 :Bool;      # its size was told to the present leader
}
