//! Where the partitions of one topic are, as last told.
//!
//! What this file keeps true: at most one question is under way at a time and none sooner than a
//! while after the last, however many callers find the picture stale. A stale picture costs a
//! detour, never a record.

use super::handle::Client;
use crate::error::WireError;
use crate::limits;
use crate::runtime::Runtime;
use narad_core::ids::PartitionIndex;
use narad_core::routing::partition_of;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Owners of a topic's partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Placement {
    /// Owner's address by partition; `None` where the owner is dead or has no address.
    owners: Vec<Option<Rc<str>>>,
    /// Every owner once, in the order of its first partition.
    distinct: Vec<Rc<str>>,
    visibility_ms: u64,
}

impl Placement {
    pub(super) fn owner(&self, partition: PartitionIndex) -> Option<&Rc<str>> {
        self.owners.get(partition.0 as usize)?.as_ref()
    }

    pub(super) fn owner_of_key(&self, key: &[u8]) -> Option<&Rc<str>> {
        let count = u32::try_from(self.owners.len()).ok()?;
        if count == 0 {
            return None;
        }
        self.owner(partition_of(key, count))
    }

    /// How long the topic's leases last; 0: not known, or as by default.
    pub(super) fn visibility_ms(&self) -> u64 {
        self.visibility_ms
    }

    /// Every owner once.
    pub(super) fn owners(&self) -> &[Rc<str>] {
        &self.distinct
    }
}

struct State {
    placement: Rc<Placement>,
    /// When it was asked for last.
    asked: Option<Instant>,
    stale: bool,
}

/// The picture of one topic. Clones share it.
pub(super) struct Locator<R: Runtime> {
    client: Client<R>,
    topic: Rc<str>,
    state: Rc<RefCell<State>>,
    asking: Rc<tokio::sync::Mutex<()>>,
}

impl<R: Runtime> Clone for Locator<R> {
    fn clone(&self) -> Self {
        Self {
            client: self.client.clone(),
            topic: self.topic.clone(),
            state: self.state.clone(),
            asking: self.asking.clone(),
        }
    }
}

impl<R: Runtime> Locator<R> {
    pub(super) fn new(client: Client<R>, topic: &str) -> Self {
        Self {
            client,
            topic: Rc::from(topic),
            state: Rc::new(RefCell::new(State {
                placement: Rc::default(),
                asked: None,
                stale: true,
            })),
            asking: Rc::default(),
        }
    }

    pub(super) fn client(&self) -> &Client<R> {
        &self.client
    }

    pub(super) fn topic(&self) -> &Rc<str> {
        &self.topic
    }

    /// The picture as last told, however old.
    pub(super) fn known(&self) -> Rc<Placement> {
        self.state.borrow().placement.clone()
    }

    /// Something did not fit the picture: the next [`Locator::fresh`] asks again.
    pub(super) fn suspect(&self) {
        self.state.borrow_mut().stale = true;
    }

    /// Whether asking makes sense now.
    fn due(&self) -> bool {
        let state = self.state.borrow();
        let age = state.asked.map(|asked| asked.elapsed());
        let pause = Duration::from_millis(limits::LOCATE_PAUSE_MS);
        let max = Duration::from_millis(limits::LOCATE_MAX_AGE_MS);
        age.is_none_or(|age| age >= max || (state.stale && age >= pause))
    }

    /// The picture, asked for anew when it is old, or suspect and not just asked for.
    pub(super) async fn fresh(&self) -> Result<Rc<Placement>, WireError> {
        if !self.due() {
            return Ok(self.known());
        }
        let _one = self.asking.lock().await;
        if !self.due() {
            return Ok(self.known());
        }
        let result = self.client.locate(&self.topic).await;
        let mut state = self.state.borrow_mut();
        state.asked = Some(Instant::now());
        let view = result?;
        let alive: HashMap<&str, &str> = view
            .nodes
            .iter()
            .filter(|node| node.status != "dead" && !node.addr.is_empty())
            .map(|node| (node.id.as_str(), node.addr.as_str()))
            .collect();
        let mut placement = Placement {
            visibility_ms: view.topic.settings.visibility_ms,
            ..Placement::default()
        };
        for partition in &view.topic.partitions {
            let owner = alive.get(partition.owner.as_str()).map(|addr| {
                let known = placement.distinct.iter().find(|known| ***known == **addr);
                let owner = known.cloned().unwrap_or_else(|| Rc::from(*addr));
                if !placement.distinct.contains(&owner) {
                    placement.distinct.push(owner.clone());
                }
                owner
            });
            placement.owners.push(owner);
        }
        state.placement = Rc::new(placement);
        state.stale = false;
        Ok(state.placement.clone())
    }
}
