//! Handing what a node's disk still holds to the cluster that the node is no member of any more.
//!
//! What this file keeps true: records go the way of any client's, with the partition that they were in
//! named; one is noted as handed over only after the cluster has answered that it is durable there, and as
//! unwanted only when a leader has confirmed that its topic is gone; a cluster that neither removed this node nor
//! lost it with a quorum gets nothing, because it may be another one; what is cut short is still on the disk and goes on at the
//! next attempt, where some may be sent twice.

use crate::control;
use crate::data_dir::DataDir;
use crate::limits::{SALVAGE_GIVE_UP_MS, SALVAGE_PAUSE_MS};
use crate::raft::rescue;
use crate::shard::limits::{SALVAGE_BYTES, SALVAGE_RECORDS};
use narad_core::ids::{ClusterId, NodeId, Offset, PartitionIndex, TopicId, WalSeq, WallMs};
use narad_storage::{Log, Options, StorageError, Wal, WalEntry, WalOptions, layout};
use narad_wire::client::{Client, ClientOptions, Record};
use narad_wire::error::{ErrorCode, WireError, WireFault};
use narad_wire::runtime::Glommio;
use narad_wire::view::FarewellView;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What to hand over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Accepted records that were not delivered yet. All that a node can hold which left in order.
    Undispatched,
    /// Those, and every record of its partitions that no consumer has acknowledged: the node was given
    /// up, and nobody else has them.
    Everything,
}

/// What was handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    /// Records that the cluster has durably now.
    pub records: u64,
    /// Records of topics that are gone, which nobody wants.
    pub unwanted: u64,
    /// Records that the disk has lost to damage.
    pub damaged: u64,
}

impl std::ops::AddAssign for Handed {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.unwanted += other.unwanted;
        self.damaged += other.damaged;
    }
}

/// Why not everything was handed over. The rest is still on the disk.
#[derive(Debug, thiserror::Error)]
pub enum SalvageError {
    /// The disk.
    #[error("{0}")]
    Storage(#[from] StorageError),
    /// The cluster.
    #[error(
        "the cluster did not take the records ({0}); they are still on the disk: once it can be reached, \
         hand them over with narad salvage DIR --server HOST:PORT"
    )]
    Cluster(Box<WireError>),
    /// The cluster has not removed this node.
    #[error(
        "the cluster behind --server has not removed node {node}: it is another cluster, or {node} is still \
         a member of it; nothing was handed over"
    )]
    NotRemoved {
        /// The node whose disk it is.
        node: NodeId,
    },
    /// A record that can never be taken.
    #[error(
        "a record of topic {topic} is refused for good ({fault}); it and those behind it are still on the disk"
    )]
    Refused {
        /// The topic.
        topic: String,
        /// Why.
        fault: Box<WireFault>,
    },
    /// The system.
    #[error("{0}")]
    System(String),
}

impl From<WireError> for SalvageError {
    fn from(error: WireError) -> Self {
        Self::Cluster(Box::new(error))
    }
}

/// Hands over what is on the disk of a node that does not run, on an executor of its own. `dir` is held,
/// so nobody else writes there. Blocks until it is done or has failed.
///
/// # Errors
/// [`SalvageError`]; what was not handed over stays on the disk.
pub fn run(dir: &DataDir, servers: Vec<String>, what: What) -> Result<Handed, SalvageError> {
    let root = dir.path().to_path_buf();
    let (node, cluster) = (dir.node_id().clone(), dir.cluster());
    let executor = glommio::LocalExecutorBuilder::new(glommio::Placement::Unbound)
        .name("salvage")
        .make()
        .map_err(|error| SalvageError::System(format!("io_uring cannot be used: {error}")))?;
    executor.run(async move {
        narad_storage::prepare_executor(&root).await?;
        let wals = wals(&root)?;
        let client = Client::with(Glommio, ClientOptions::new(servers));
        let mut salvage = Salvage {
            client,
            node,
            cluster,
            root: root.clone(),
            topics: None,
        };
        let mut handed = Handed::default();
        for wal in wals {
            handed += salvage.wal(&wal).await?;
        }
        if what == What::Everything {
            for found in layout::scan(&root).await?.copies {
                handed += salvage.copy(&root, found.copy).await?;
            }
        }
        Ok(handed)
    })
}

/// The directories of all ingress WALs.
fn wals(root: &Path) -> Result<Vec<PathBuf>, SalvageError> {
    let shards = match std::fs::read_dir(root.join("shards")) {
        Ok(shards) => shards,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(SalvageError::System(error.to_string())),
    };
    let mut found: Vec<PathBuf> = shards
        .filter_map(Result::ok)
        .map(|entry| entry.path().join("wal"))
        .filter(|path| path.exists())
        .collect();
    found.sort();
    Ok(found)
}

struct Salvage {
    client: Client<Glommio>,
    /// Whose disk it is.
    node: NodeId,
    /// The cluster that the disk names.
    cluster: Option<ClusterId>,
    /// Where its data is.
    root: PathBuf,
    /// Living topics by incarnation, as a leader confirmed them after this node had left; so one that
    /// this disk knows and that is not among them is gone for good. None before somebody has asked.
    topics: Option<BTreeMap<TopicId, String>>,
}

impl Salvage {
    async fn wal(&mut self, dir: &Path) -> Result<Handed, SalvageError> {
        let (wal, _) = Wal::open(dir, &WalOptions::default()).await?;
        let mut handed = Handed::default();
        let outcome = self.pending(&wal, &mut handed).await;
        // Known only once it was read.
        handed.damaged = wal.pending().lost;
        // Also when it was cut short: what was handed over is not sent again.
        wal.close().await?;
        outcome.map(|()| handed)
    }

    async fn pending(&mut self, wal: &Wal, handed: &mut Handed) -> Result<(), SalvageError> {
        let mut from = WalSeq(1);
        loop {
            let batch = wal.read(from, SALVAGE_RECORDS, SALVAGE_BYTES).await?;
            let Some((last, _)) = batch.last() else {
                return Ok(());
            };
            from = WalSeq(last.0 + 1);
            let mut groups: BTreeMap<(TopicId, PartitionIndex, bool), Vec<(WalSeq, Record)>> =
                BTreeMap::new();
            for (seq, entry) in batch {
                let WalEntry {
                    topic,
                    partition,
                    pinned,
                    record,
                } = entry;
                let record = to_wire(record);
                let group = groups.entry((topic, partition, pinned)).or_default();
                group.push((seq, record));
            }
            for ((topic, partition, pinned), group) in groups {
                let (seqs, records): (Vec<WalSeq>, Vec<Record>) = group.into_iter().unzip();
                // Its place was only a preference where the client had not named it.
                let named = pinned.then_some(partition);
                *handed += self.hand_over(topic, named, records).await?;
                wal.done(&seqs);
            }
        }
    }

    async fn copy(
        &mut self,
        root: &Path,
        copy: narad_core::ids::CopyId,
    ) -> Result<Handed, SalvageError> {
        let (log, _) = Log::open(root, copy, &Options::default()).await?;
        let mut handed = Handed::default();
        let outcome = self.unacked(&log, &mut handed).await;
        if log.meta_dirty() {
            log.persist_meta().await?;
        }
        log.close().await?;
        if outcome.is_ok() && handed != Handed::default() {
            tracing::info!(%copy, records = handed.records, damaged = handed.damaged, "records handed over");
        }
        outcome.map(|()| handed)
    }

    async fn unacked(&mut self, log: &Log, handed: &mut Handed) -> Result<(), SalvageError> {
        let key = log.copy().key;
        let mut at: Offset = log.frontier().max(log.start());
        while at < log.hwm() {
            let batch = log.read(at, SALVAGE_RECORDS, SALVAGE_BYTES).await?;
            handed.damaged += batch.skipped;
            let records: Vec<Record> = batch
                .records
                .iter()
                .map(|(_, record)| to_wire(record.to_record()))
                .collect();
            *handed += self
                .hand_over(key.topic, Some(key.partition), records)
                .await?;
            if batch.next <= at {
                return Err(SalvageError::System(format!(
                    "reading {} does not get past {at}",
                    log.copy()
                )));
            }
            at = batch.next;
            log.set_frontier(at);
        }
        Ok(())
    }

    /// Produces records until each is durable somewhere.
    async fn hand_over(
        &mut self,
        topic: TopicId,
        named: Option<PartitionIndex>,
        mut records: Vec<Record>,
    ) -> Result<Handed, SalvageError> {
        let count = records.len() as u64;
        let unwanted = Handed {
            unwanted: count,
            ..Handed::default()
        };
        let until = Instant::now() + Duration::from_millis(SALVAGE_GIVE_UP_MS);
        let Some(name) = self.topic(topic, until).await? else {
            return Ok(unwanted);
        };
        while !records.is_empty() {
            let produced = self.client.produce_once(&name, &records, named).await;
            let error = match produced {
                Ok(outcomes) => match keep_untaken(&mut records, outcomes) {
                    None => break,
                    Some(fault) => WireError::Fault(fault),
                },
                Err(error) => error,
            };
            if let Some(fault) = error.fault() {
                match fault.code {
                    // That node's own view. Whether the topic is gone, a leader says.
                    ErrorCode::UnknownTopic => {
                        self.topics = None;
                        if self.topic(topic, until).await?.is_none() {
                            return Ok(unwanted);
                        }
                    }
                    ErrorCode::TooLarge | ErrorCode::Invalid | ErrorCode::UnknownPartition => {
                        let (topic, fault) = (name, Box::new(fault.clone()));
                        return Err(SalvageError::Refused { topic, fault });
                    }
                    _ => {}
                }
            }
            pause(until, error).await?;
        }
        Ok(Handed {
            records: count,
            ..Handed::default()
        })
    }

    async fn topic(
        &mut self,
        topic: TopicId,
        until: Instant,
    ) -> Result<Option<String>, SalvageError> {
        loop {
            if let Some(topics) = &self.topics {
                return Ok(topics.get(&topic).cloned());
            }
            match self.farewell().await {
                Ok(view) => self.topics = Some(confirmed(&self.node, view)?),
                Err(error) => pause(until, error).await?,
            }
        }
    }

    /// What the cluster says about this node; of one that it has not removed, with what the disk tells of its line.
    async fn farewell(&self) -> Result<FarewellView, WireError> {
        let node = self.node.as_str();
        let view = self.client.farewell(node, None).await?;
        let Some(cluster) = self.cluster.filter(|_| !view.removed) else {
            return Ok(view);
        };
        let contents = rescue::contents(&self.root.join("raft"), node).await;
        let contents = contents.map_err(|error| error.to_string());
        match contents.and_then(|found| control::latest_recovery(&found)) {
            Ok(recovery) => self.client.farewell(node, Some((cluster, recovery))).await,
            Err(error) => {
                tracing::warn!(error, "the metadata on this disk does not tell whose it is");
                Ok(view)
            }
        }
    }
}

/// The topics of the cluster that this node was removed from, or lost with its quorum.
fn confirmed(node: &NodeId, view: FarewellView) -> Result<BTreeMap<TopicId, String>, SalvageError> {
    if !view.removed && !view.lost {
        return Err(SalvageError::NotRemoved { node: node.clone() });
    }
    let topics = view.topics.into_iter();
    Ok(topics
        .map(|topic| (TopicId(topic.id), topic.name))
        .collect())
}

/// Waits before the next attempt, or gives up.
async fn pause(until: Instant, error: WireError) -> Result<(), SalvageError> {
    if Instant::now() >= until {
        return Err(error.into());
    }
    tracing::debug!(%error, "handing records over: tried again");
    glommio::timer::sleep(Duration::from_millis(SALVAGE_PAUSE_MS)).await;
    Ok(())
}

/// Keeps what was not taken; the first reason why. What was refused for its time comes again without one.
fn keep_untaken<T>(
    records: &mut Vec<Record>,
    outcomes: Vec<Result<T, WireFault>>,
) -> Option<WireFault> {
    let (mut first, mut anew) = (None, None);
    let mut outcomes = outcomes.into_iter();
    records.retain_mut(|record| match outcomes.next() {
        Some(Ok(_)) => false,
        Some(Err(fault)) if fault.code == ErrorCode::Invalid && record.time.0 != 0 => {
            // Older than the topic keeps records, or from a clock that was wrong: it was acknowledged all the
            // same, so it begins anew where it arrives.
            record.time = WallMs(0);
            anew.get_or_insert(WireFault {
                code: ErrorCode::Unavailable,
                ..fault
            });
            true
        }
        Some(Err(fault)) => {
            first.get_or_insert(fault);
            true
        }
        None => true,
    });
    if records.is_empty() {
        return None;
    }
    Some(first.or(anew).unwrap_or_else(|| {
        WireFault::new(
            ErrorCode::Internal,
            "the node left records without an outcome",
        )
    }))
}

fn to_wire(record: narad_storage::Record) -> Record {
    Record {
        time: record.time,
        key: record.key,
        value: record.value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_did_not_remove_the_node_gets_nothing() {
        let node = NodeId::parse("n3").expect("an id");
        let mut view = FarewellView::default();
        let refused = confirmed(&node, view.clone());
        assert!(matches!(refused, Err(SalvageError::NotRemoved { node }) if node.0 == "n3"));
        for (removed, lost) in [(true, false), (false, true)] {
            (view.removed, view.lost) = (removed, lost);
            assert!(
                confirmed(&node, view.clone())
                    .expect("its cluster")
                    .is_empty()
            );
        }
    }

    #[test]
    fn what_was_not_taken_is_kept_in_order_with_the_first_reason() {
        let record = |n: u8| Record {
            time: WallMs(1),
            key: None,
            value: vec![n],
        };
        let fault = |text: &str| WireFault::new(ErrorCode::Busy, text);
        let mut records: Vec<Record> = (0..4).map(record).collect();
        let outcomes = vec![Ok(()), Err(fault("first")), Ok(()), Err(fault("second"))];
        let reason = keep_untaken(&mut records, outcomes).expect("two are left");
        assert_eq!(reason.message, "first");
        assert_eq!(records, [record(1), record(3)]);
        // An answer that is too short leaves the rest untaken.
        assert!(keep_untaken(&mut records, vec![Ok(())]).is_some());
        assert_eq!(records, [record(3)]);
        assert!(keep_untaken(&mut records, vec![Ok(())]).is_none());
    }

    #[test]
    fn a_record_that_is_too_old_for_its_topic_is_handed_over_as_a_new_one() {
        let mut records = vec![Record {
            time: WallMs(1),
            ..Record::new("kept")
        }];
        let refused = || vec![Err::<(), _>(WireFault::new(ErrorCode::Invalid, "past"))];
        let reason = keep_untaken(&mut records, refused()).expect("once more");
        assert_eq!(
            (reason.code, records[0].time),
            (ErrorCode::Unavailable, WallMs(0))
        );
        // Without a time it was refused for something else, which no repetition mends.
        let reason = keep_untaken(&mut records, refused()).expect("for good");
        assert_eq!(reason.code, ErrorCode::Invalid);
    }
}
