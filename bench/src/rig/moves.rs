//! Moving all partitions of a topic at once, and waiting for that, as any client can.
//!
//! What this file keeps true: what is told of a move is what its target says; a move that does not end, or
//! that ends without a new owner, is an error and no figure.

use super::bench_cluster::Measured;
use super::{RigError, call};
use narad_core::ids::PartitionIndex;
use narad_wire::client::{Client, MoveView};
use narad_wire::error::ErrorCode;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Moves that have not ended by then never will.
const MOVED_WITHIN: Duration = Duration::from_secs(300);
/// How long the old copies of moves before may still lie at the targets.
const RECLAIMED_WITHIN: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Moves that were ordered together.
#[derive(Clone, Debug)]
pub struct Ordered {
    ids: BTreeSet<u64>,
    /// When the first of them was.
    pub began: Instant,
    /// Orders that had to wait until an old copy was reclaimed; the clock ran meanwhile.
    pub waited: usize,
}

/// Orders each partition of a topic to the node after its owner.
///
/// # Errors
/// [`RigError`].
pub async fn order(cluster: &Measured, topic: &str) -> Result<Ordered, RigError> {
    let client = cluster.client();
    let members = call("asking for the members", client.members().await)?.members;
    let view = call("describing a topic", client.describe_topic(topic).await)?;
    let mut ordered = Ordered {
        ids: BTreeSet::new(),
        began: Instant::now(),
        waited: 0,
    };
    for partition in &view.partitions {
        let at = members.iter().position(|one| one.id == partition.owner);
        let next = &members[at.map_or(0, |at| at + 1) % members.len()];
        if next.id == partition.owner {
            return Err(RigError::Usage("there is one node only".into()));
        }
        let index = PartitionIndex(partition.index);
        let asked = Instant::now();
        let mut refused = false;
        let (tried, id) = loop {
            let tried = Instant::now();
            match client.move_to(topic, index, &next.id).await {
                Err(error)
                    if error.code() == Some(ErrorCode::Refused)
                        && asked.elapsed() < RECLAIMED_WITHIN =>
                {
                    refused = true;
                    glommio::timer::sleep(LOOK_EVERY).await;
                }
                id => break (tried, call("ordering a move", id)?),
            }
        };
        if ordered.ids.is_empty() {
            ordered.began = tried;
        }
        ordered.waited += usize::from(refused);
        ordered.ids.insert(id);
    }
    Ok(ordered)
}

/// The moves, and the seconds from the first order until the last end was seen.
pub type Ended = glommio::Task<Result<(Vec<MoveView>, f64), RigError>>;

/// Waits for them beside what the caller does; the flag says when that is over.
pub fn watch(client: &Client, ordered: Ordered) -> (Rc<Cell<bool>>, Ended) {
    let over = Rc::new(Cell::new(false));
    let (client, told) = (client.clone(), over.clone());
    let waiter = glommio::spawn_local(async move {
        let moved = ended(&client, &ordered).await;
        told.set(true);
        moved
    });
    (over, waiter)
}

/// Waits until they have all flipped; the moves, and the seconds from the first order until the last end
/// was seen.
///
/// # Errors
/// [`RigError`].
async fn ended(client: &Client, ordered: &Ordered) -> Result<(Vec<MoveView>, f64), RigError> {
    loop {
        let view = call("asking for the moves", client.moves().await)?;
        let seconds = ordered.began.elapsed().as_secs_f64();
        let ours = view.finished.into_iter();
        let ours: Vec<MoveView> = ours
            .filter(|one| ordered.ids.contains(&one.move_id))
            .collect();
        if let Some(other) = ours.iter().find(|one| one.outcome != "flipped") {
            return Err(RigError::Usage(format!(
                "the move of {}/{} ended as {:?}: {}",
                other.topic, other.partition, other.outcome, other.last_error
            )));
        }
        if ours.len() == ordered.ids.len() {
            return Ok((ours, seconds));
        }
        if ordered.began.elapsed() > MOVED_WITHIN {
            return Err(RigError::Usage(format!(
                "{} of {} moves have not ended within {} s",
                ordered.ids.len() - ours.len(),
                ordered.ids.len(),
                MOVED_WITHIN.as_secs()
            )));
        }
        glommio::timer::sleep(LOOK_EVERY).await;
    }
}
