//! Ordering moves and waiting for them, as any client can.
//!
//! What this file keeps true: a move that does not end is an error that says where it stands; what is
//! refused for a moment, because an old copy is still being reclaimed, is ordered again.

use super::{FreezeError, call};
use crate::lines::Lines;
use crate::servers::Servers;
use crate::stop::Stop;
use narad_core::ids::PartitionIndex;
use narad_wire::client::{MemberView, MoveView};
use narad_wire::error::{ErrorCode, WireError};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Between two looks at a move: each one asks every node, which costs them what the move should get.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two orders of a move that was refused for a moment.
const ORDER_EVERY: Duration = Duration::from_millis(20);
/// A move may take this many times as long as its bytes need at B.
const PATIENCE: f64 = 40.0;
/// And so much more.
const PATIENCE_AT_LEAST: f64 = 120.0;
/// What B is at least, in bytes/s, where no throttle sets it.
const SLOWEST: f64 = 32e6;
/// How long the old copy of the move before may still lie at the target.
const RECLAIM_WITHIN: Duration = Duration::from_secs(60);

/// A cluster and what is needed to move its partitions.
pub(crate) struct Mover {
    pub(crate) servers: Rc<Servers>,
    pub(crate) lines: Lines,
    nodes: Vec<MemberView>,
    stop: Stop,
}

impl Mover {
    /// Of a cluster that is up.
    pub(crate) async fn new(
        servers: Rc<Servers>,
        lines: Lines,
        stop: Stop,
    ) -> Result<Self, FreezeError> {
        let view = call("looking at the members", servers.next().members().await)?;
        let nodes: Vec<MemberView> = view
            .members
            .into_iter()
            .filter(|one| one.status == "alive" && !one.draining)
            .collect();
        if nodes.len() < 2 {
            return Err(FreezeError::TooFew(nodes.len()));
        }
        Ok(Self {
            servers,
            lines,
            nodes,
            stop,
        })
    }

    /// Sets the product's throttle to a fixed rate, in bytes/s; 0 lifts it.
    pub(crate) async fn throttle(&self, bytes_per_s: u64) -> Result<u64, WireError> {
        self.servers.next().throttle(Some(bytes_per_s)).await
    }

    /// The limit on copies as it is, in bytes/s and whether it adapts; `Some` sets it.
    pub(crate) async fn limit(&self, set: Option<(u64, bool)>) -> Result<(u64, bool), WireError> {
        self.servers.next().copy_limit(set).await
    }

    /// Whether the controller plans moves of its own, which would share B with the one that is measured;
    /// `Some` pauses it or lets it go on.
    pub(crate) async fn paused(&self, set: Option<bool>) -> Result<bool, WireError> {
        self.servers.next().pause_rebalance(set).await
    }

    /// Whether the person wants no more.
    pub(crate) fn go_on(&self) -> Result<(), FreezeError> {
        if self.stop.wanted() {
            return Err(FreezeError::Interrupted);
        }
        Ok(())
    }

    /// Who owns the only partition of a topic, and up to where it is visible.
    pub(crate) async fn owner(&self, topic: &str) -> Result<(String, Option<u64>), FreezeError> {
        let view = self.servers.next().describe_topic(topic).await;
        let view = call("looking at the topic", view)?;
        let partition = &view.partitions[0];
        let hwm = partition.known.then_some(partition.hwm);
        Ok((partition.owner.clone(), hwm))
    }

    /// Bytes that the only partition of a topic has on its disk; 0 when its owner does not say.
    pub(crate) async fn log_bytes(&self, topic: &str) -> Result<u64, FreezeError> {
        let view = self.servers.next().describe_topic(topic).await;
        Ok(call("looking at the topic", view)?.partitions[0].bytes)
    }

    /// Where clients should call to reach a node first.
    pub(crate) fn addr(&self, node: &str) -> Option<&str> {
        let found = self.nodes.iter().find(|one| one.id == node);
        found.map(|one| one.addr.as_str())
    }

    /// Orders a move. Refused for a moment after a move back, until the old copy is reclaimed.
    async fn order(&self, topic: &str, target: &str) -> Result<u64, FreezeError> {
        let began = Instant::now();
        loop {
            let client = self.servers.next();
            match client.move_to(topic, PartitionIndex(0), target).await {
                Err(error)
                    if error.code() == Some(ErrorCode::Refused)
                        && began.elapsed() < RECLAIM_WITHIN =>
                {
                    self.go_on()?;
                    glommio::timer::sleep(ORDER_EVERY).await;
                }
                ordered => return call("ordering the move", ordered),
            }
        }
    }

    /// Moves the partition of a topic to the next node and waits until that is over; `bytes` at
    /// `bandwidth` (0: unthrottled) say how long it may take.
    pub(crate) async fn once(
        &self,
        topic: &str,
        bytes: u64,
        bandwidth: u64,
    ) -> Result<MoveView, FreezeError> {
        let (owner, _) = self.owner(topic).await?;
        let at = self.nodes.iter().position(|one| one.id == owner);
        let target = &self.nodes[at.map_or(0, |at| at + 1) % self.nodes.len()].id;
        let move_id = self.order(topic, target).await?;
        let speed = if bandwidth == 0 {
            SLOWEST
        } else {
            bandwidth as f64
        };
        let patience = PATIENCE_AT_LEAST + PATIENCE * bytes as f64 / speed;
        let began = Instant::now();
        loop {
            let view = self.servers.next().moves().await;
            let view = call("looking at the moves", view)?;
            if let Some(done) = view.finished.iter().find(|one| one.move_id == move_id) {
                return Ok(done.clone());
            }
            self.go_on()?;
            if began.elapsed().as_secs_f64() > patience {
                let running = view.moves.into_iter().find(|one| one.move_id == move_id);
                let running = running.unwrap_or_default();
                return Err(FreezeError::Stuck {
                    move_id,
                    phase: running.phase,
                    last_error: running.last_error,
                    after_s: began.elapsed().as_secs(),
                });
            }
            glommio::timer::sleep(LOOK_EVERY).await;
        }
    }
}
