//! The client interface, method by method: parameters in, a typed answer out.
//!
//! What this file keeps true: every method answers inside its result (`error`), and the parameters
//! are copied out of the message before anything is awaited.

use crate::metrics::Call;
use crate::rpc::gate::Gate;
use crate::rpc::peer::PeerServer;
use crate::rpc::reply::{answer, malformed, text};
use crate::rpc::{cluster, consume, leases, moves, produce, topics};
use crate::shard::shard::Shard;
use narad_core::ids::NodeIncarnation;
use narad_schema::client_capnp::node;
use narad_wire::convert::{
    list_len, write_member, write_move, write_node, write_plan_steps, write_topic,
};
use narad_wire::error::WireFault;
use narad_wire::rpc::{Line, outcomes_room, with_room};
use std::rc::Rc;

/// The server of one connection.
pub(crate) struct NodeServer {
    pub(crate) shard: Rc<Shard>,
    pub(crate) gate: Gate,
    pub(crate) line: Line,
    /// Those of the shard, for all its connections.
    pub(crate) polls: Rc<consume::RemotePolls>,
}

impl NodeServer {
    fn peer_of(
        &self,
        node: &str,
        incarnation: NodeIncarnation,
        cluster: u64,
    ) -> Result<PeerServer, WireFault> {
        let id = crate::rpc::control::admit(&self.shard.ctx, node, cluster)?;
        Ok(PeerServer::new(self.shard.clone(), id, incarnation))
    }
}

impl node::Server for NodeServer {
    async fn info(
        self: Rc<Self>,
        _: node::InfoParams,
        mut results: node::InfoResults,
    ) -> Result<(), capnp::Error> {
        write_node(
            results.get().init_info(),
            &crate::rpc::control::who(&self.shard.ctx),
        );
        Ok(())
    }

    async fn produce(
        self: Rc<Self>,
        params: node::ProduceParams,
        mut results: node::ProduceResults,
    ) -> Result<(), capnp::Error> {
        let outcome = produce::call(&self, params).await;
        self.shard.ctx.metrics.called(Call::Produce, &outcome);
        answer!(results, outcome, |placed| produce::fill(
            with_room(outcomes_room(placed.len()), || results.get()),
            &placed
        ));
        Ok(())
    }

    async fn consume(
        self: Rc<Self>,
        params: node::ConsumeParams,
        mut results: node::ConsumeResults,
    ) -> Result<(), capnp::Error> {
        let outcome = consume::call(&self, params).await;
        self.shard.ctx.metrics.called(Call::Consume, &outcome);
        answer!(results, outcome, |got| consume::fill(
            with_room(got.room(), || results.get()),
            got,
            &self.line
        ));
        Ok(())
    }

    async fn ack(
        self: Rc<Self>,
        params: node::AckParams,
        mut results: node::AckResults,
    ) -> Result<(), capnp::Error> {
        let outcome = leases::ack(&self, params).await;
        self.shard.ctx.metrics.called(Call::Ack, &outcome);
        answer!(results, outcome, |settled| leases::fill(
            results.get().init_results(list_len(settled.len())),
            &settled
        ));
        Ok(())
    }

    async fn nack(
        self: Rc<Self>,
        params: node::NackParams,
        mut results: node::NackResults,
    ) -> Result<(), capnp::Error> {
        let outcome = leases::nack(&self, params).await;
        self.shard.ctx.metrics.called(Call::Nack, &outcome);
        answer!(results, outcome, |settled| leases::fill(
            results.get().init_results(list_len(settled.len())),
            &settled
        ));
        Ok(())
    }

    async fn extend(
        self: Rc<Self>,
        params: node::ExtendParams,
        mut results: node::ExtendResults,
    ) -> Result<(), capnp::Error> {
        let outcome = leases::extend(&self, params).await;
        self.shard.ctx.metrics.called(Call::Extend, &outcome);
        answer!(results, outcome, |settled| leases::fill(
            results.get().init_results(list_len(settled.len())),
            &settled
        ));
        Ok(())
    }

    async fn replay(
        self: Rc<Self>,
        params: node::ReplayParams,
        mut results: node::ReplayResults,
    ) -> Result<(), capnp::Error> {
        let outcome = leases::replay(&self, params).await;
        self.shard.ctx.metrics.called(Call::Replay, &outcome);
        answer!(results, outcome, |batch| leases::fill_replay(
            with_room(leases::replay_room(&batch), || results.get()),
            &batch
        ));
        Ok(())
    }

    async fn create_topic(
        self: Rc<Self>,
        params: node::CreateTopicParams,
        mut results: node::CreateTopicResults,
    ) -> Result<(), capnp::Error> {
        let outcome = topics::create(&self, &params).await;
        answer!(results, outcome, |topic| write_topic(
            results.get().init_topic(),
            &topic
        ));
        Ok(())
    }

    async fn list_topics(
        self: Rc<Self>,
        _: node::ListTopicsParams,
        mut results: node::ListTopicsResults,
    ) -> Result<(), capnp::Error> {
        let all = topics::list(&self.shard.ctx);
        let mut list = results.get().init_topics(list_len(all.len()));
        for (index, topic) in (0u32..).zip(&all) {
            write_topic(list.reborrow().get(index), topic);
        }
        Ok(())
    }

    async fn describe_topic(
        self: Rc<Self>,
        params: node::DescribeTopicParams,
        mut results: node::DescribeTopicResults,
    ) -> Result<(), capnp::Error> {
        let name = params.get().and_then(|p| p.get_name());
        let outcome = match text(name) {
            Ok(name) => topics::describe(&self, &name).await,
            Err(fault) => Err(fault),
        };
        answer!(results, outcome, |topic| write_topic(
            results.get().init_topic(),
            &topic
        ));
        Ok(())
    }

    async fn alter_topic(
        self: Rc<Self>,
        params: node::AlterTopicParams,
        mut results: node::AlterTopicResults,
    ) -> Result<(), capnp::Error> {
        let outcome = topics::alter(&self, &params).await;
        answer!(results, outcome, |topic| write_topic(
            results.get().init_topic(),
            &topic
        ));
        Ok(())
    }

    async fn delete_topic(
        self: Rc<Self>,
        params: node::DeleteTopicParams,
        mut results: node::DeleteTopicResults,
    ) -> Result<(), capnp::Error> {
        let outcome = match text(params.get().and_then(|p| p.get_name())) {
            Ok(name) => topics::delete(&self, &name).await,
            Err(fault) => Err(fault),
        };
        answer!(results, outcome, |()| ());
        Ok(())
    }

    async fn members(
        self: Rc<Self>,
        _: node::MembersParams,
        mut results: node::MembersResults,
    ) -> Result<(), capnp::Error> {
        let outcome = cluster::members(&self).await;
        answer!(results, outcome, |view| {
            let mut builder = results.get();
            builder.set_leader(&view.leader);
            builder.set_term(view.term);
            builder.set_applied(view.applied);
            builder.set_local(view.local);
            let mut list = builder.init_members(list_len(view.members.len()));
            for (index, member) in (0u32..).zip(&view.members) {
                write_member(list.reborrow().get(index), member);
            }
        });
        Ok(())
    }

    async fn moves(
        self: Rc<Self>,
        _: node::MovesParams,
        mut results: node::MovesResults,
    ) -> Result<(), capnp::Error> {
        let view = moves::all(&self.shard).await;
        let mut builder = results.get();
        let mut running = builder.reborrow().init_moves(list_len(view.moves.len()));
        for (index, one) in (0u32..).zip(&view.moves) {
            write_move(running.reborrow().get(index), one);
        }
        let mut finished = builder.init_finished(list_len(view.finished.len()));
        for (index, one) in (0u32..).zip(&view.finished) {
            write_move(finished.reborrow().get(index), one);
        }
        Ok(())
    }

    async fn plan(
        self: Rc<Self>,
        _: node::PlanParams,
        mut results: node::PlanResults,
    ) -> Result<(), capnp::Error> {
        let outcome = cluster::plan(&self, None).await;
        answer!(results, outcome, |plan| {
            let mut builder = results.get();
            let steps = list_len(plan.steps.len());
            write_plan_steps(builder.reborrow().init_steps(steps), &plan.steps);
            let later = list_len(plan.later.len());
            write_plan_steps(builder.reborrow().init_later(later), &plan.later);
            builder.set_total_steps(plan.total_steps);
            builder.set_total_bytes(plan.total_bytes);
            let mut notes = builder.init_notes(list_len(plan.notes.len()));
            for (index, note) in (0u32..).zip(&plan.notes) {
                notes.set(index, note);
            }
        });
        Ok(())
    }

    async fn move_to(
        self: Rc<Self>,
        params: node::MoveToParams,
        mut results: node::MoveToResults,
    ) -> Result<(), capnp::Error> {
        let outcome = moves::move_to(&self, &params).await;
        answer!(results, outcome, |id| results.get().set_move_id(id.0));
        Ok(())
    }

    async fn cancel_move(
        self: Rc<Self>,
        params: node::CancelMoveParams,
        mut results: node::CancelMoveResults,
    ) -> Result<(), capnp::Error> {
        let outcome = moves::cancel(&self, &params).await;
        answer!(results, outcome, |()| ());
        Ok(())
    }

    async fn decommission(
        self: Rc<Self>,
        params: node::DecommissionParams,
        mut results: node::DecommissionResults,
    ) -> Result<(), capnp::Error> {
        let outcome = cluster::decommission(&self, &params).await;
        answer!(results, outcome, |plan| {
            let mut builder = results.get();
            let steps = list_len(plan.steps.len());
            write_plan_steps(builder.reborrow().init_steps(steps), &plan.steps);
            let later = list_len(plan.later.len());
            write_plan_steps(builder.reborrow().init_later(later), &plan.later);
            builder.set_total_steps(plan.total_steps);
            builder.set_total_bytes(plan.total_bytes);
            let mut notes = builder.reborrow().init_notes(list_len(plan.notes.len()));
            for (index, note) in (0u32..).zip(&plan.notes) {
                notes.set(index, note);
            }
            let mut blocked = builder.init_blocked(list_len(plan.blocked.len()));
            for (index, why) in (0u32..).zip(&plan.blocked) {
                blocked.set(index, why);
            }
        });
        Ok(())
    }

    async fn throttle(
        self: Rc<Self>,
        params: node::ThrottleParams,
        mut results: node::ThrottleResults,
    ) -> Result<(), capnp::Error> {
        let outcome = match params.get().map_err(malformed) {
            Ok(p) => {
                let set = (p.get_bytes_per_s(), p.get_adaptive());
                cluster::throttle(&self, p.get_set().then_some(set)).await
            }
            Err(fault) => Err(fault),
        };
        answer!(results, outcome, |(rate, adaptive)| {
            let mut builder = results.get();
            builder.set_bytes_per_s(rate);
            builder.set_adaptive(adaptive);
        });
        Ok(())
    }

    async fn pause_rebalance(
        self: Rc<Self>,
        params: node::PauseRebalanceParams,
        mut results: node::PauseRebalanceResults,
    ) -> Result<(), capnp::Error> {
        let outcome = match params.get().map_err(malformed) {
            Ok(p) => cluster::pause(&self, p.get_set().then(|| p.get_paused())).await,
            Err(fault) => Err(fault),
        };
        answer!(results, outcome, |paused| results.get().set_paused(paused));
        Ok(())
    }

    async fn forget(
        self: Rc<Self>,
        params: node::ForgetParams,
        mut results: node::ForgetResults,
    ) -> Result<(), capnp::Error> {
        let outcome = cluster::forget(&self, &params).await;
        answer!(results, outcome, |(loss, done)| {
            let mut builder = results.get();
            builder.set_done(done);
            narad_wire::convert::write_loss(builder.init_loss(), &loss);
        });
        Ok(())
    }

    async fn farewell(
        self: Rc<Self>,
        params: node::FarewellParams,
        mut results: node::FarewellResults,
    ) -> Result<(), capnp::Error> {
        let outcome = topics::farewell(&self, &params).await;
        answer!(results, outcome, |view| {
            let mut builder = results.get();
            builder.set_removed(view.removed);
            builder.set_lost(view.lost);
            let mut list = builder.init_topics(list_len(view.topics.len()));
            for (index, topic) in (0u32..).zip(&view.topics) {
                write_topic(list.reborrow().get(index), topic);
            }
        });
        Ok(())
    }

    async fn locate(
        self: Rc<Self>,
        params: node::LocateParams,
        mut results: node::LocateResults,
    ) -> Result<(), capnp::Error> {
        let outcome = match text(params.get().and_then(|p| p.get_topic())) {
            Ok(name) => topics::locate(&self.shard.ctx, &name).await,
            Err(fault) => Err(fault),
        };
        answer!(results, outcome, |found| {
            let mut builder = results.get();
            write_topic(builder.reborrow().init_topic(), &found.topic);
            let mut nodes = builder.init_nodes(list_len(found.nodes.len()));
            for (index, member) in (0u32..).zip(&found.nodes) {
                write_member(nodes.reborrow().get(index), member);
            }
        });
        Ok(())
    }

    async fn peer(
        self: Rc<Self>,
        params: node::PeerParams,
        mut results: node::PeerResults,
    ) -> Result<(), capnp::Error> {
        let outcome = match params.get().map_err(malformed) {
            Ok(p) => match text(p.get_node()) {
                Ok(node) => {
                    self.peer_of(&node, NodeIncarnation(p.get_incarnation()), p.get_cluster())
                }
                Err(fault) => Err(fault),
            },
            Err(fault) => Err(fault),
        };
        answer!(results, outcome, |server| results
            .get()
            .set_peer(narad_wire::rpc::new_client(server)));
        Ok(())
    }
}
