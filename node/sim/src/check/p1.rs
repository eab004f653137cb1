//! P1: no acked record is lost.
//!
//! What this file keeps true: at every moment each acked record is where it can still come back
//! from: at the owner, in a WAL, in an ended copy at or above its salvage point, or on the disk of a
//! node that was given up; at rest it is readable at the owner.

use super::Check;
use crate::disk::Record;
use crate::world::{Node, World};
use std::collections::BTreeSet;
use std::sync::Arc;

impl World {
    fn held(&self) -> BTreeSet<Record> {
        let mut held = BTreeSet::new();
        for node in &self.nodes {
            held.extend(node.wal.iter().map(|entry| entry.record));
        }
        for p in 0..self.keys.len() {
            let Some(view) = self.view(p) else { continue };
            let owner = &self.nodes[self.index_of(&view.owner)].parts[p];
            if let Some(copy) = owner.copies.get(&view.epoch) {
                held.extend(copy.shown_from(copy.start));
            }
            for ended in &view.ended {
                let part = &self.nodes[self.index_of(&ended.owner)].parts[p];
                if let Some(copy) = part.copies.get(&ended.epoch) {
                    held.extend(copy.shown_from(Self::salvage_from(ended.end, copy)));
                }
            }
            let disks = self
                .given_up()
                .flat_map(|node| node.parts[p].copies.values());
            for copy in disks {
                held.extend(copy.shown_from(copy.frontier.max(copy.start)));
            }
        }
        held
    }

    /// Nodes that were given up: what their disks hold may still come.
    fn given_up(&self) -> impl Iterator<Item = &Arc<Node>> {
        let gone = |node: &&Arc<Node>| self.last().forgotten.contains(&node.id);
        self.nodes.iter().filter(gone)
    }

    /// Records of a topic that is gone are nobody's, and so are those that a consumer has had once their
    /// log was given up.
    fn wanted(&self) -> impl Iterator<Item = &Record> {
        self.ghost.acked.iter().filter(|record| {
            let home = self.ghost.home.get(record);
            let had = self.ghost.given_up && self.ghost.consumed.contains(record);
            !had && home.is_none_or(|p| self.view(*p).is_some())
        })
    }

    /// At every moment.
    pub(crate) fn check_kept(&mut self) {
        let held = self.held();
        let lost = self.wanted().find(|record| !held.contains(record)).copied();
        if let Some(record) = lost {
            self.violate(Check::P1, format!("acked record {record} is lost"));
        }
    }

    /// At rest.
    pub(crate) fn check_readable(&mut self) {
        let mut readable = BTreeSet::new();
        for p in 0..self.keys.len() {
            let Some(view) = self.view(p) else { continue };
            let owner = &self.nodes[self.index_of(&view.owner)].parts[p];
            if let Some(copy) = owner.copies.get(&view.epoch) {
                let shown = copy.segments.iter().filter(|(at, _)| *at < copy.hwm);
                readable.extend(shown.map(|(_, record)| record));
            }
        }
        let lost = self
            .wanted()
            .find(|record| !readable.contains(record))
            .copied();
        if let Some(record) = lost {
            let what = format!("acked record {record} cannot be read at rest");
            self.violate(Check::P1, what);
        }
    }
}
