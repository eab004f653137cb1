//! Topics, members, moves: what operators ask and order.
//!
//! What this file keeps true: questions are asked again elsewhere when a node does not answer;
//! orders are not, once they may have been carried out.

use super::handle::Client;
use crate::convert::{
    check, list_len, read_loss, read_member, read_move, read_node, read_plan_step, read_topic,
    setting_to_wire, text, write_settings_view,
};
use crate::error::WireError;
use crate::rpc::call_on;
use crate::runtime::Runtime;
use crate::view::{
    FarewellView, LocationView, LossView, MembersView, MoveView, MovesView, NodeView, PlanStepView,
    PlanView, TopicSettingsView, TopicView,
};
use narad_core::ids::{ClusterId, PartitionIndex, RecoveryId};
use narad_core::meta::Setting;
use narad_schema::client_capnp::{move_, plan_step};

fn steps(
    list: capnp::struct_list::Reader<'_, plan_step::Owned>,
) -> Result<Vec<PlanStepView>, WireError> {
    list.iter().map(read_plan_step).collect()
}

fn notes(list: capnp::text_list::Reader<'_>) -> Result<Vec<String>, WireError> {
    list.iter().map(|note| text(note?)).collect()
}

fn moves(list: capnp::struct_list::Reader<'_, move_::Owned>) -> Result<Vec<MoveView>, WireError> {
    list.iter().map(read_move).collect()
}

impl<R: Runtime> Client<R> {
    /// Who answers.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn info(&self) -> Result<NodeView, WireError> {
        self.question(async |node, _, time| {
            let request = node.info_request();
            call_on(self.runtime(), time, request.send(), |r| {
                read_node(r.get_info()?)
            })
            .await
        })
        .await
    }

    /// Creates a topic. `parent` is the topic that feeds it, for placement.
    ///
    /// # Errors
    /// [`WireError`]; when its outcome is unknown, look with [`Client::describe_topic`].
    pub async fn create_topic(
        &self,
        name: &str,
        partitions: u32,
        parent: Option<&str>,
        settings: &TopicSettingsView,
    ) -> Result<TopicView, WireError> {
        self.change(async |node, _, time| {
            let mut request = node.create_topic_request();
            let mut params = request.get();
            params.set_name(name);
            params.set_partitions(partitions);
            params.set_parent(parent.unwrap_or_default());
            write_settings_view(params.init_settings(), settings);
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                read_topic(r.get_topic()?)
            })
            .await
        })
        .await
    }

    /// Changes the named settings of a topic to the values in `settings` and leaves the others.
    ///
    /// # Errors
    /// [`WireError`]; when its outcome is unknown, doing it again is harmless.
    pub async fn alter_topic(
        &self,
        name: &str,
        settings: &TopicSettingsView,
        change: &[Setting],
    ) -> Result<TopicView, WireError> {
        self.change(async |node, _, time| {
            let mut request = node.alter_topic_request();
            let mut params = request.get();
            params.set_name(name);
            write_settings_view(params.reborrow().init_settings(), settings);
            let mut list = params.init_change(list_len(change.len()));
            for (index, setting) in (0u32..).zip(change) {
                list.set(index, setting_to_wire(*setting));
            }
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                read_topic(r.get_topic()?)
            })
            .await
        })
        .await
    }

    /// All topics.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn list_topics(&self) -> Result<Vec<TopicView>, WireError> {
        self.question(async |node, _, time| {
            let request = node.list_topics_request();
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                r.get_topics()?.iter().map(read_topic).collect()
            })
            .await
        })
        .await
    }

    /// What hands over the disk of `node` asks first: whether the cluster has removed it, and which
    /// topics there are, both confirmed by a leader. With `line`, the cluster and the latest replaced quorum
    /// that the disk knows of, also whether it was a member only in what a replaced quorum alone knew.
    ///
    /// # Errors
    /// [`WireError`]; nothing is known then.
    pub async fn farewell(
        &self,
        node: &str,
        line: Option<(ClusterId, Option<RecoveryId>)>,
    ) -> Result<FarewellView, WireError> {
        self.question(async |to, _, time| {
            let mut request = to.farewell_request();
            request.get().set_node(node);
            if let Some((cluster, recovery)) = line {
                request.get().set_cluster(cluster.0);
                request.get().set_recovery(recovery.map_or(0, |id| id.0));
            }
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                let topics = r.get_topics()?.iter().map(read_topic);
                Ok(FarewellView {
                    removed: r.get_removed(),
                    lost: r.get_lost(),
                    topics: topics.collect::<Result<_, WireError>>()?,
                })
            })
            .await
        })
        .await
    }

    /// One topic, with figures of its partitions where their owners could be asked.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn describe_topic(&self, name: &str) -> Result<TopicView, WireError> {
        self.question(async |node, _, time| {
            let mut request = node.describe_topic_request();
            request.get().set_name(name);
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                read_topic(r.get_topic()?)
            })
            .await
        })
        .await
    }

    /// Deletes a topic with everything in it.
    ///
    /// # Errors
    /// [`WireError`]; when its outcome is unknown, look with [`Client::describe_topic`].
    pub async fn delete_topic(&self, name: &str) -> Result<(), WireError> {
        self.change(async |node, _, time| {
            let mut request = node.delete_topic_request();
            request.get().set_name(name);
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())
            })
            .await
        })
        .await
    }

    /// The members and Raft's standing.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn members(&self) -> Result<MembersView, WireError> {
        let view = self
            .question(async |node, _, time| {
                let request = node.members_request();
                call_on(self.runtime(), time, request.send(), |r| {
                    check(r.has_error(), r.get_error())?;
                    let members = r.get_members()?.iter().map(read_member);
                    Ok(MembersView {
                        members: members.collect::<Result<_, _>>()?,
                        leader: text(r.get_leader()?)?,
                        term: r.get_term(),
                        applied: r.get_applied(),
                        local: r.get_local(),
                    })
                })
                .await
            })
            .await?;
        self.learn(&view.members);
        Ok(view)
    }

    /// Running and latest finished moves.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn moves(&self) -> Result<MovesView, WireError> {
        self.question(async |node, _, time| {
            let request = node.moves_request();
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                Ok(MovesView {
                    moves: moves(r.get_moves()?)?,
                    finished: moves(r.get_finished()?)?,
                })
            })
            .await
        })
        .await
    }

    /// What the planner would do now, and why not more.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn plan(&self) -> Result<PlanView, WireError> {
        self.question(async |node, _, time| {
            let request = node.plan_request();
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                Ok(PlanView {
                    steps: steps(r.get_steps()?)?,
                    later: steps(r.get_later()?)?,
                    total_steps: r.get_total_steps(),
                    total_bytes: r.get_total_bytes(),
                    notes: notes(r.get_notes()?)?,
                    blocked: Vec::new(),
                })
            })
            .await
        })
        .await
    }

    /// Orders a move; returns its id.
    ///
    /// # Errors
    /// [`WireError`]; when its outcome is unknown, look with [`Client::moves`].
    pub async fn move_to(
        &self,
        topic: &str,
        partition: PartitionIndex,
        to: &str,
    ) -> Result<u64, WireError> {
        self.change(async |node, _, time| {
            let mut request = node.move_to_request();
            let mut params = request.get();
            params.set_topic(topic);
            params.set_partition(partition.0);
            params.set_to(to);
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                Ok(r.get_move_id())
            })
            .await
        })
        .await
    }

    /// Cancels a running move. Costs nothing but the copy so far.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn cancel_move(
        &self,
        topic: &str,
        partition: PartitionIndex,
    ) -> Result<(), WireError> {
        self.change(async |node, _, time| {
            let mut request = node.cancel_move_request();
            let mut params = request.get();
            params.set_topic(topic);
            params.set_partition(partition.0);
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())
            })
            .await
        })
        .await
    }

    /// Drains a node off, takes that back, or (`dry_run`) only tells what would move.
    ///
    /// # Errors
    /// [`WireError`]; when its outcome is unknown, look with [`Client::members`].
    pub async fn decommission(
        &self,
        member: &str,
        cancel: bool,
        dry_run: bool,
    ) -> Result<PlanView, WireError> {
        self.change(async |node, _, time| {
            let mut request = node.decommission_request();
            let mut params = request.get();
            params.set_node(member);
            params.set_cancel(cancel);
            params.set_dry_run(dry_run);
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                Ok(PlanView {
                    steps: steps(r.get_steps()?)?,
                    later: steps(r.get_later()?)?,
                    total_steps: r.get_total_steps(),
                    total_bytes: r.get_total_bytes(),
                    notes: notes(r.get_notes()?)?,
                    blocked: notes(r.get_blocked()?)?,
                })
            })
            .await
        })
        .await
    }

    /// The fixed copy rate limit of a node in bytes/s, 0 for none; `Some` sets it first (0: unlimited).
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn throttle(&self, set_bytes_per_s: Option<u64>) -> Result<u64, WireError> {
        let set = set_bytes_per_s.map(|rate| (rate, false));
        Ok(self.copy_limit(set).await?.0)
    }

    /// The limit on copies: bytes/s (0: no fixed one) and whether each node adapts it to its own produce
    /// latency; `Some` sets it first.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn copy_limit(&self, set: Option<(u64, bool)>) -> Result<(u64, bool), WireError> {
        let op = async |node: narad_schema::client_capnp::node::Client, _, time| {
            let mut request = node.throttle_request();
            let mut params = request.get();
            let (rate, adaptive) = set.unwrap_or_default();
            params.set_bytes_per_s(rate);
            params.set_adaptive(adaptive);
            params.set_set(set.is_some());
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                Ok((r.get_bytes_per_s(), r.get_adaptive()))
            })
            .await
        };
        match set {
            Some(_) => self.change(op).await,
            None => self.question(op).await,
        }
    }

    /// Whether rebalancing is paused; `Some` sets it first. Running moves go on.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn pause_rebalance(&self, set: Option<bool>) -> Result<bool, WireError> {
        let op = async |node: narad_schema::client_capnp::node::Client, _, time| {
            let mut request = node.pause_rebalance_request();
            let mut params = request.get();
            params.set_paused(set.unwrap_or(false));
            params.set_set(set.is_some());
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                Ok(r.get_paused())
            })
            .await
        };
        match set {
            Some(_) => self.change(op).await,
            None => self.question(op).await,
        }
    }

    /// What giving up a dead node for good loses; with `accept_loss` it is given up, and the answer
    /// says so. `deaths` is [`LossView::deaths`] of the list whose loss is accepted; 0 accepts whatever
    /// it is now.
    ///
    /// # Errors
    /// [`WireError`]; when its outcome is unknown, look with [`Client::members`].
    pub async fn forget(
        &self,
        member: &str,
        accept_loss: bool,
        deaths: u64,
    ) -> Result<(LossView, bool), WireError> {
        let op = async |node: narad_schema::client_capnp::node::Client, _, time| {
            let mut request = node.forget_request();
            let mut params = request.get();
            params.set_node(member);
            params.set_accept_loss(accept_loss);
            params.set_deaths(deaths);
            call_on(self.runtime(), time, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                Ok((read_loss(r.get_loss()?)?, r.get_done()))
            })
            .await
        };
        if accept_loss {
            self.change(op).await
        } else {
            self.question(op).await
        }
    }

    /// Where a topic's partitions are, from the asked node's metadata.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn locate(&self, topic: &str) -> Result<LocationView, WireError> {
        let view = self
            .question(async |node, _, time| {
                super::calls::locate(self.runtime(), &node, time, topic).await
            })
            .await?;
        self.learn(&view.nodes);
        Ok(view)
    }
}
