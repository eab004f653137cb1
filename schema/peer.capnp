@0xe27c4b18f05d9a3c;
# The interface between nodes: Raft, metadata, dispatch, and the move.
#
# Kept true: each call names incarnations, epochs, move and handoff ids, so a late or repeated
# message can only be refused; every result carries `error`, absent when the call succeeded.

using Common = import "common.capnp";

interface Peer {
  raft @0 (kind :UInt16, body :Data, cluster :UInt64) -> (body :Data, error :Common.Error);
  # One Raft message; kinds and bodies belong to the Raft layer. At most 2 MiB. cluster: the sender's,
  # 0 while it has not learnt it; a node of another cluster refuses (detail "other_cluster").

  propose @1 (command :Data) -> (index :UInt64, reply :Data, error :Common.Error);
  # A metadata command (JSON) for the leader. notLeader names the leader; unknownOutcome: ask.

  readIndex @2 () -> (index :UInt64, error :Common.Error);
  # At the leader: confirmed by a quorum round that started after this call arrived.

  heartbeat @3 (beat :Heartbeat) -> (commitIndex :UInt64, leaseMs :UInt32, term :UInt64,
                                      registered :Bool, error :Common.Error);
  # At the leader. leaseMs 0: this answer renews no lease (the node is marked dead, or unknown).
  # A lease counts from the sending of the beat, once commitIndex is applied at the sender.

  join @4 (request :JoinRequest) -> (index :UInt64, error :Common.Error, cluster :UInt64);
  # At the leader: registers the process; a new node also becomes a learner. cluster: which one this
  # is, 0 while that is not decided.

  append @5 (partition :Common.Partition, epoch :UInt64, wal :UInt64, seqs :List(UInt64),
             records :List(Common.Record))
      -> (end :UInt64, duplicates :UInt32, error :Common.Error);
  # At the owner: dispatched records, seqs ascending, at most 4 MiB. Durable when answered.

  openCopy @6 (partition :Common.Partition, epoch :UInt64, moveId :UInt64, target :Text)
      -> (manifest :Manifest, error :Common.Error);
  refreshCopy @7 (partition :Common.Partition, moveId :UInt64)
      -> (manifest :Manifest, error :Common.Error);
  # openCopy is repeatable; the session belongs to (partition, moveId). The bulk channel serves
  # ranges of an open session below its durable lengths.
  checkPrefix @8 (partition :Common.Partition, moveId :UInt64, segment :Segment)
      -> (match :Bool, error :Common.Error);
  # Whether the bytes 0..durableLen of this segment have this digest at the owner.
  freeze @9 (partition :Common.Partition, moveId :UInt64, handoffId :UInt64)
      -> (capture :Manifest, settleUs :UInt64, error :Common.Error);
  # Stops accepting and appending, waits for appends in flight, answers with the final capture.
  # Repeatable: asked again it answers with the capture of the same freeze.
  renewFreeze @10 (partition :Common.Partition, handoffId :UInt64) -> (error :Common.Error);
  # Progress of the drain: starts the freeze's time-to-live anew.
  closeCopy @11 (partition :Common.Partition, moveId :UInt64) -> (error :Common.Error);

  serves @12 (partition :Common.Partition, epoch :UInt64) -> (serves :Bool, error :Common.Error);
  # Whether this node has this epoch's log open; asked before the old copy is reclaimed.

  localMoves @13 () -> (moves :Data, error :Common.Error);
  # JSON: the running and latest finished moves whose target is this node.

  localPartitions @14 (topic :UInt64) -> (partitions :List(PartitionStat), error :Common.Error);

  transferLeader @15 (to :Text) -> (error :Common.Error);
}

struct Heartbeat {
  node @0 :Text;
  incarnation @1 :UInt64;
  applied @2 :UInt64;
  undispatched @3 :UInt64;     # records in ingress WALs
  heldCopies @4 :UInt32;       # ended copies on its disk, not salvaged or reclaimed yet
  diskFreeBytes @5 :UInt64;
  diskUsedBytes @6 :UInt64;
  partitionBytes @7 :List(PartitionBytes);  # owned partitions, for the planner; bounded: others in turn
  cluster @8 :UInt64;          # the sender's; 0: not known
  waitingFor @9 :List(WaitingRecords);      # of the undispatched ones, those that can go to a dead owner only
}

struct WaitingRecords {
  node @0 :Text;               # the dead owner
  records @1 :UInt64;
}

struct PartitionBytes {
  partition @0 :Common.Partition;
  bytes @1 :UInt64;
}

struct JoinRequest {
  node @0 :Text;
  addr @1 :Text;
  bulkAddr @2 :Text;
  httpAddr @3 :Text;
  incarnation @4 :UInt64;
  disk @5 :UInt64;
  shards @6 :UInt32;
  version @7 :Text;
  founder @8 :Bool;            # started with --peers on an empty disk: refused by a cluster without it
  cluster @9 :UInt64;          # the one that its data directory belongs to; 0: none, or not known
  hasLog @10 :Bool;            # it has a cluster's metadata: refused by one that does not know the node
  recovery @11 :UInt64;        # the latest replaced quorum that its metadata has; 0: none
  appliedTerm @12 :UInt64;     # the last entry of its log that it has applied; only with hasLog
  appliedIndex @13 :UInt64;
}

struct Segment {
  base @0 :UInt64;
  epoch @1 :UInt64;
  durableLen @2 :UInt64;
  digest @3 :UInt32;
  end @4 :UInt64;
  sealed @5 :Bool;
}

struct Manifest {
  segments @0 :List(Segment);
  start @1 :UInt64;
  hwm @2 :UInt64;
  frontier @3 :UInt64;
  marks @4 :List(Mark);
  fenceHwm @5 :UInt64;
  fenceEnd @6 :UInt64;         # 0: no fence
  writeBytesPerS @7 :UInt64;   # W, as the owner measures it
  bulkToken @8 :UInt64;        # what the bulk channel wants to see for this session
}

struct Mark {
  wal @0 :UInt64;
  seq @1 :UInt64;
}

struct PartitionStat {
  index @0 :UInt32;
  epoch @1 :UInt64;
  start @2 :UInt64;
  hwm @3 :UInt64;
  frontier @4 :UInt64;
  bytes @5 :UInt64;
}
