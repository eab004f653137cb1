//! Topics: creation with placement, settings, deletion; and what owners report of their copies.
//!
//! What this file keeps true: a name belongs to at most one living topic; an incarnation is the
//! log index of its creation and never comes back; settings and partition counts are in range;
//! a copy counts as reclaimed only for the owner and the ended epoch that it belonged to.

use super::apply::{Applied, bad_settings};
use super::placement;
use crate::defaults::{
    ALL_PARTITIONS_MAX, LEASE_BOUND_MAX, PARTITIONS_MAX, RECORD_MAX_BYTES, TOPICS_MAX,
    VISIBILITY_MAX_MS,
};
use crate::ids::{Epoch, NodeId, PartitionKey, RaftIndex, TopicName};
use crate::meta::{Assignment, Command, MetaState, Refusal, Topic, TopicSettings};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

impl MetaState {
    pub(super) fn apply_topic(&mut self, index: RaftIndex, command: &Command) -> Applied {
        match command {
            Command::CreateTopic {
                name,
                partitions,
                parent,
                settings,
            } => self.create_topic(index, name, *partitions, parent.as_ref(), settings),
            Command::SetTopicSettings {
                topic,
                settings,
                change,
            } => {
                let now = self.topics.get(topic).ok_or(Refusal::UnknownTopic)?;
                let mut new = now.settings.clone();
                for setting in change {
                    new.adopt(*setting, settings);
                }
                self.check_settings(&now.name, &new)?;
                let topic = self.topics.get_mut(topic).expect("found above");
                Arc::make_mut(topic).settings = new;
                Ok(index)
            }
            Command::DeleteTopic { topic } => {
                let topic = self.topics.remove(topic).ok_or(Refusal::UnknownTopic)?;
                self.names.remove(&topic.name);
                Ok(index)
            }
            Command::MarkOpened { key, owner, epoch } => {
                let now = self.standing(*key)?;
                owns(now, owner, *epoch)?;
                if !now.opened {
                    self.change(*key, |a| a.opened = true);
                }
                Ok(index)
            }
            Command::MarkReclaimed { key, epoch, owner } => {
                self.mark_reclaimed(index, *key, *epoch, owner)
            }
            _ => unreachable!("not a command about topics"),
        }
    }

    fn create_topic(
        &mut self,
        index: RaftIndex,
        name: &TopicName,
        partitions: u32,
        parent: Option<&TopicName>,
        settings: &TopicSettings,
    ) -> Applied {
        check_topic_name(name)?;
        if self.names.contains_key(name) {
            return Err(Refusal::TopicExists);
        }
        if partitions == 0 || partitions > PARTITIONS_MAX {
            return Err(bad_settings(format!(
                "a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}"
            )));
        }
        let all: usize = self.topics.values().map(|t| t.partitions.len()).sum();
        if self.topics.len() >= TOPICS_MAX || all + partitions as usize > ALL_PARTITIONS_MAX {
            return Err(bad_settings(format!(
                "the cluster holds at most {TOPICS_MAX} topics and {ALL_PARTITIONS_MAX} partitions; \
                 delete some first"
            )));
        }
        if let Some(parent) = parent
            && !self.names.contains_key(parent)
        {
            return Err(bad_settings(format!(
                "the parent topic {parent} does not exist; create it first"
            )));
        }
        self.check_settings(name, settings)?;
        let owners = placement::place(self, partitions as usize, parent);
        if owners.is_empty() {
            return Err(Refusal::NoReceiver);
        }
        let id = self.topic_id_at(index);
        let partitions: Vec<Assignment> = owners
            .into_iter()
            .map(|owner| Assignment {
                owner,
                epoch: Epoch(1),
                target: None,
                opened: false,
                ended: Vec::new(),
                changed: index,
                born: Assignment::first_epoch(),
            })
            .collect();
        let topic = Topic {
            id,
            name: name.clone(),
            parent: parent.cloned(),
            settings: settings.clone(),
            partitions,
        };
        self.topics.insert(id, Arc::new(topic));
        self.names.insert(name.clone(), id);
        Ok(index)
    }

    fn check_settings(&self, name: &TopicName, settings: &TopicSettings) -> Result<(), Refusal> {
        let TopicSettings {
            visibility_ms,
            retention_ms,
            retention_bytes,
            max_record_bytes,
            max_deliveries,
            dead_letter,
            max_leases,
            max_acked_ahead,
        } = settings;
        if *visibility_ms == 0 || *visibility_ms > VISIBILITY_MAX_MS {
            return Err(bad_settings(format!(
                "visibility_ms must be 1 to {VISIBILITY_MAX_MS}, not {visibility_ms}"
            )));
        }
        if *retention_ms == Some(0) || *retention_bytes == Some(0) {
            return Err(bad_settings(
                "retention must be above 0; leave it out to keep all records",
            ));
        }
        if *max_record_bytes == 0 || *max_record_bytes > RECORD_MAX_BYTES {
            return Err(bad_settings(format!(
                "max_record_bytes must be 1 to {RECORD_MAX_BYTES}, not {max_record_bytes}"
            )));
        }
        for (name, bound) in [
            ("max_leases", max_leases),
            ("max_acked_ahead", max_acked_ahead),
        ] {
            if *bound == 0 || *bound > LEASE_BOUND_MAX {
                return Err(bad_settings(format!(
                    "{name} must be 1 to {LEASE_BOUND_MAX}, not {bound}"
                )));
            }
        }
        if *max_deliveries == Some(0) {
            return Err(bad_settings(
                "max_deliveries must be 1 or more; leave it out to retry for ever",
            ));
        }
        let Some(dead_letter) = dead_letter else {
            return match max_deliveries {
                None => Ok(()),
                Some(_) => Err(bad_settings(
                    "max_deliveries needs a dead_letter topic, or records would be dropped",
                )),
            };
        };
        if max_deliveries.is_none() {
            return Err(bad_settings("dead_letter needs max_deliveries"));
        }
        if dead_letter == name {
            return Err(bad_settings("a topic cannot be its own dead_letter topic"));
        }
        if !self.names.contains_key(dead_letter) {
            return Err(bad_settings(format!(
                "the dead_letter topic {dead_letter} does not exist; create it first"
            )));
        }
        Ok(())
    }

    fn mark_reclaimed(
        &mut self,
        index: RaftIndex,
        key: PartitionKey,
        epoch: Epoch,
        owner: &NodeId,
    ) -> Applied {
        let now = self.standing(key)?;
        let not_owner = Refusal::NotOwner {
            owner: now.owner.clone(),
            epoch: now.epoch,
        };
        if epoch >= now.epoch {
            return Err(not_owner);
        }
        match now.ended.iter().find(|e| e.epoch == epoch) {
            // Reclaimed before: the same again.
            None => Ok(index),
            Some(ended) if ended.owner != *owner => Err(not_owner),
            Some(_) => {
                self.change(key, |a| a.ended.retain(|e| e.epoch != epoch));
                Ok(index)
            }
        }
    }
}

/// Refuses when the partition has another owner or epoch.
pub(super) fn owns(now: &Assignment, owner: &NodeId, epoch: Epoch) -> Result<(), Refusal> {
    if now.owner == *owner && now.epoch == epoch {
        return Ok(());
    }
    Err(Refusal::NotOwner {
        owner: now.owner.clone(),
        epoch: now.epoch,
    })
}

fn check_topic_name(name: &TopicName) -> Result<(), Refusal> {
    TopicName::parse(name.as_str())
        .map(drop)
        .map_err(|error| Refusal::BadName {
            detail: format!("topic name {:?} {error}", name.as_str()),
        })
}
