//! Members: registration, death and revival, draining, removal.
//!
//! What this file keeps true: a death is counted once and only for the process that was silent
//! (R6, R11); a drain flag survives everything but its own cancelling and the removal; a member
//! leaves only when nothing of it is needed; a removed id and a wiped disk never come back as if
//! nothing had happened.

use super::apply::{Applied, bad_settings};
use crate::defaults::{MEMBER_TEXT_MAX, MEMBERS_MAX, PAST_INCARNATIONS};
use crate::ids::{DeathGeneration, NodeId, NodeIncarnation, RaftIndex};
use crate::meta::{Command, Member, MemberStatus, MetaState, Refusal};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

impl MetaState {
    pub(super) fn apply_member(&mut self, index: RaftIndex, command: &Command) -> Applied {
        match command {
            Command::Register {
                id,
                addr,
                bulk_addr,
                http_addr,
                incarnation,
                disk,
                shards,
                version,
            } => self.register(Member {
                id: id.clone(),
                addr: addr.clone(),
                bulk_addr: bulk_addr.clone(),
                http_addr: http_addr.clone(),
                incarnation: *incarnation,
                disk: *disk,
                shards: *shards,
                version: version.clone(),
                status: MemberStatus::Alive,
                deaths: DeathGeneration(0),
                draining: false,
                draining_changed: RaftIndex(0),
                registered: index,
                past: Vec::new(),
            }),
            Command::MarkDead {
                id,
                incarnation,
                deaths,
            } => {
                let member = self.lively(id, *incarnation, *deaths, MemberStatus::Alive)?;
                member.status = MemberStatus::Dead;
                member.deaths = DeathGeneration(deaths.0 + 1);
                Ok(index)
            }
            Command::MarkAlive {
                id,
                incarnation,
                deaths,
            } => {
                let member = self.lively(id, *incarnation, *deaths, MemberStatus::Dead)?;
                member.status = MemberStatus::Alive;
                Ok(index)
            }
            Command::SetDraining { id, draining } => {
                self.member_status(id)?;
                let member = self.member_mut(id);
                if member.draining != *draining {
                    member.draining = *draining;
                    member.draining_changed = index;
                }
                Ok(index)
            }
            Command::RemoveMember { id, drain } => self.remove_member(index, id, *drain),
            Command::ForgetMember { id, deaths } => self.forget_member(index, id, *deaths),
            _ => unreachable!("not a command about members"),
        }
    }

    /// The member, when a command about its life still speaks of the life that it has now.
    fn lively(
        &mut self,
        id: &NodeId,
        incarnation: NodeIncarnation,
        deaths: DeathGeneration,
        wanted: MemberStatus,
    ) -> Result<&mut Member, Refusal> {
        self.member_status(id)?;
        let member = &self.members[id];
        if member.incarnation != incarnation {
            return Err(Refusal::OldIncarnation);
        }
        if member.deaths != deaths {
            return Err(Refusal::OtherDeath);
        }
        if member.status != wanted {
            return Err(Refusal::WrongStatus);
        }
        Ok(self.member_mut(id))
    }

    fn member_mut(&mut self, id: &NodeId) -> &mut Member {
        Arc::make_mut(
            self.members
                .get_mut(id)
                .expect("the guard found the member"),
        )
    }

    fn register(&mut self, mut new: Member) -> Applied {
        let index = new.registered;
        check_member(&new)?;
        if self.removed.contains_key(&new.id) {
            return Err(Refusal::MemberRemoved);
        }
        let Some(old) = self.members.get(&new.id) else {
            if self.members.len() >= MEMBERS_MAX {
                return Err(bad_settings(format!(
                    "the cluster has {MEMBERS_MAX} members, the most allowed; decommission one first"
                )));
            }
            self.members.insert(new.id.clone(), Arc::new(new));
            return Ok(index);
        };
        if old.incarnation == new.incarnation {
            // A repeated command. It does not revive a process that was marked dead since:
            // MarkAlive does, which knows that the process answers (R11).
            return Ok(old.registered);
        }
        if old.past.contains(&new.incarnation) {
            return Err(Refusal::OldIncarnation);
        }
        if old.disk != new.disk && !self.holdings()[&new.id].is_free() {
            return Err(Refusal::OtherDisk);
        }
        new.deaths = old.deaths;
        new.draining = old.draining;
        new.draining_changed = old.draining_changed;
        new.past = old.past.clone();
        new.past.push(old.incarnation);
        if new.past.len() > PAST_INCARNATIONS {
            new.past.remove(0);
        }
        self.members.insert(new.id.clone(), Arc::new(new));
        Ok(index)
    }

    fn remove_member(&mut self, index: RaftIndex, id: &NodeId, drain: RaftIndex) -> Applied {
        let status = self.member_status(id)?;
        let changed = self.members[id].draining_changed;
        if changed != drain {
            // Cancelled since, and perhaps begun anew: records may have been taken in between.
            return Err(Refusal::ChangedSince { changed });
        }
        // A dead node cannot have said that its ingress WAL is empty.
        if status == MemberStatus::Dead || !self.members[id].draining {
            return Err(Refusal::WrongStatus);
        }
        if !self.holdings()[id].is_free() {
            return Err(Refusal::StillHolds);
        }
        self.members.remove(id);
        self.removed.insert(id.clone(), index);
        Ok(index)
    }
}

fn check_member(member: &Member) -> Result<(), Refusal> {
    NodeId::parse(member.id.as_str()).map_err(|error| Refusal::BadName {
        detail: format!("node id {:?} {error}", member.id.as_str()),
    })?;
    for (what, text, required) in [
        ("address", &member.addr, true),
        ("bulk address", &member.bulk_addr, true),
        ("admin address", &member.http_addr, false),
        ("version", &member.version, false),
    ] {
        if text.len() > MEMBER_TEXT_MAX || (required && text.is_empty()) {
            return Err(bad_settings(format!(
                "the {what} of node {} must have 1 to {MEMBER_TEXT_MAX} bytes",
                member.id
            )));
        }
    }
    if member.shards == 0 {
        return Err(bad_settings(format!(
            "node {} must have at least one shard",
            member.id
        )));
    }
    Ok(())
}
