//! One node of the test cluster.

use super::{Cluster, Mood, TOPIC, TOPIC_ID};
use capnp::capability::Rc as CapRc;
use narad_core::ids::{Offset, PartitionIndex};
use narad_core::routing::partition_of;
use narad_schema::client_capnp::node;
use narad_schema::peer_capnp::peer;
use narad_wire::client::{
    Lease, MemberView, NodeView, PartitionView, PlanStepView, TopicSettingsView, TopicView,
};
use narad_wire::convert::{self, Record};
use narad_wire::error::{ErrorCode, WireFault};
use std::rc::{Rc, Weak};
use std::time::Duration;

pub struct TestNode {
    cluster: Weak<Cluster>,
    index: usize,
}

type Outcome = Result<(), capnp::Error>;

impl TestNode {
    pub fn client(cluster: &Rc<Cluster>, index: usize) -> node::Client {
        capnp_rpc::new_client(Self {
            cluster: Rc::downgrade(cluster),
            index,
        })
    }

    /// The cluster, after what a stalled node does: nothing.
    async fn enter(&self, method: &'static str) -> Result<Rc<Cluster>, capnp::Error> {
        let gone = || capnp::Error::failed("the cluster is gone".into());
        let cluster = self.cluster.upgrade().ok_or_else(gone)?;
        *cluster
            .calls
            .borrow_mut()
            .entry((self.index, method))
            .or_default() += 1;
        let mood = cluster.moods.borrow()[self.index];
        if mood == Mood::Stall {
            drop(cluster);
            std::future::pending::<()>().await;
            unreachable!()
        }
        Ok(cluster)
    }

    fn member(cluster: &Cluster, index: usize) -> MemberView {
        MemberView {
            id: format!("n{index}"),
            addr: cluster.addr(index),
            status: "alive".into(),
            role: if index == 0 { "leader" } else { "voter" }.into(),
            ..MemberView::default()
        }
    }

    fn topic(cluster: &Cluster) -> TopicView {
        let partitions = cluster.partitions.borrow();
        let partitions = (0u32..).zip(partitions.iter());
        TopicView {
            id: TOPIC_ID,
            name: TOPIC.into(),
            partitions: partitions
                .map(|(index, p)| PartitionView {
                    index,
                    owner: format!("n{}", p.owner),
                    epoch: p.epoch,
                    hwm: p.log.len() as u64,
                    known: true,
                    ..PartitionView::default()
                })
                .collect(),
            ..TopicView::default()
        }
    }
}

fn unknown_topic(name: &str) -> WireFault {
    WireFault::new(ErrorCode::UnknownTopic, format!("no topic {name}")).hint("create it")
}

fn place(cluster: &Cluster, node: usize, partition: i32, record: &Record) -> (usize, bool) {
    let partitions = cluster.partitions.borrow();
    let count = u32::try_from(partitions.len()).unwrap();
    let index = match (usize::try_from(partition), &record.key) {
        (Ok(named), _) => named,
        (_, Some(key)) => partition_of(key, count).0 as usize,
        (_, None) => (0..partitions.len())
            .find(|i| partitions[*i].owner == node && !partitions[*i].frozen)
            .unwrap_or(0),
    };
    let here = partitions[index].owner == node && !partitions[index].frozen;
    (index, here)
}

fn leases(
    list: capnp::struct_list::Reader<'_, narad_schema::client_capnp::lease::Owned>,
) -> Vec<Lease> {
    list.iter()
        .map(|lease| Lease {
            partition: PartitionIndex(lease.get_partition()),
            offset: Offset(lease.get_offset()),
            nonce: narad_core::ids::Nonce(lease.get_nonce()),
        })
        .collect()
}

/// What standing leases are done with; `None` per lease when it stands.
fn settle(
    cluster: &Cluster,
    node: usize,
    leases: &[Lease],
    done: impl Fn(&mut super::Partition, u64),
) -> Vec<Option<WireFault>> {
    let mut partitions = cluster.partitions.borrow_mut();
    leases
        .iter()
        .map(|lease| {
            let partition = &mut partitions[lease.partition.0 as usize];
            let offset = lease.offset.0;
            let now = cluster.clock.get();
            let stands = partition
                .leases
                .get(&offset)
                .is_some_and(|(nonce, until)| *nonce == lease.nonce.0 && now < *until);
            if partition.owner != node || !stands {
                return Some(WireFault::new(ErrorCode::StaleLease, "the lease has ended"));
            }
            done(partition, offset);
            None
        })
        .collect()
}

macro_rules! answer_leases {
    ($results:expr, $settled:expr) => {{
        let settled = $settled;
        let mut list = $results
            .get()
            .init_results(u32::try_from(settled.len()).unwrap());
        for (index, fault) in (0u32..).zip(settled) {
            let mut out = list.reborrow().get(index);
            match fault {
                None => out.set_ok(()),
                Some(fault) => convert::write_fault(out.init_error(), &fault),
            }
        }
        Ok(())
    }};
}

impl node::Server for TestNode {
    async fn info(self: CapRc<Self>, _: node::InfoParams, mut r: node::InfoResults) -> Outcome {
        self.enter("info").await?;
        let view = NodeView {
            id: format!("n{}", self.index),
            version: "test".into(),
            max_batch_records: 10_000,
            ..NodeView::default()
        };
        convert::write_node(r.get().init_info(), &view);
        Ok(())
    }

    async fn produce(
        self: CapRc<Self>,
        params: node::ProduceParams,
        mut r: node::ProduceResults,
    ) -> Outcome {
        let cluster = self.enter("produce").await?;
        let params = params.get()?;
        let topic = params.get_topic()?.to_str()?;
        if topic != TOPIC {
            convert::write_fault(r.get().init_error(), &unknown_topic(topic));
            return Ok(());
        }
        let records = params.get_records()?;
        let mood = cluster.moods.borrow()[self.index];
        let mut results = r.get().init_results(records.len());
        for (index, record) in (0u32..).zip(records.iter()) {
            let record = convert::read_record(record).unwrap();
            let mut out = results.reborrow().get(index);
            if let Mood::Refuse(refusal) = mood {
                let fault = WireFault::new(refusal.code(), "not now");
                convert::write_fault(out.init_error(), &fault);
                continue;
            }
            let (partition, here) = place(&cluster, self.index, params.get_partition(), &record);
            let offset = cluster.put(partition, record);
            if here {
                let mut at = out.init_committed();
                at.set_partition(u32::try_from(partition).unwrap());
                at.set_offset(offset);
            } else {
                out.set_accepted(());
            }
        }
        if mood == Mood::Swallow {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn consume(
        self: CapRc<Self>,
        params: node::ConsumeParams,
        mut r: node::ConsumeResults,
    ) -> Outcome {
        let cluster = self.enter("consume").await?;
        let params = params.get()?;
        let topic = params.get_topic()?.to_str()?;
        if topic != TOPIC {
            convert::write_fault(r.get().init_error(), &unknown_topic(topic));
            return Ok(());
        }
        let most = params.get_max_records() as usize;
        let mut left = u64::from(params.get_wait_ms());
        let taken = loop {
            let visibility = match params.get_visibility_ms() {
                0 => narad_core::defaults::VISIBILITY_MS,
                ms => ms.into(),
            };
            let until = cluster.clock.get() + Duration::from_millis(visibility);
            let taken = take(&cluster, self.index, most, params.get_local_only(), until);
            if !taken.is_empty() || left == 0 {
                break taken;
            }
            let nap = left.min(2);
            left -= nap;
            glommio::timer::sleep(Duration::from_millis(nap)).await;
        };
        let mut list = r.get().init_records(u32::try_from(taken.len()).unwrap());
        for (index, (lease, record)) in (0u32..).zip(taken) {
            let mut out = list.reborrow().get(index);
            convert::write_record(out.reborrow().init_record(), record.as_ref());
            out.set_deliveries(1);
            out.set_topic_id(TOPIC_ID);
            let mut at = out.init_lease();
            at.set_partition(lease.partition.0);
            at.set_offset(lease.offset.0);
            at.set_nonce(lease.nonce.0);
        }
        Ok(())
    }

    async fn ack(self: CapRc<Self>, params: node::AckParams, mut r: node::AckResults) -> Outcome {
        let cluster = self.enter("ack").await?;
        let leases = leases(params.get()?.get_leases()?);
        answer_leases!(
            r,
            settle(&cluster, self.index, &leases, |partition, offset| {
                partition.leases.remove(&offset);
                partition.acked[usize::try_from(offset).unwrap()] = true;
            })
        )
    }

    async fn nack(
        self: CapRc<Self>,
        params: node::NackParams,
        mut r: node::NackResults,
    ) -> Outcome {
        let cluster = self.enter("nack").await?;
        let leases = leases(params.get()?.get_leases()?);
        answer_leases!(
            r,
            settle(&cluster, self.index, &leases, |partition, offset| {
                partition.leases.remove(&offset);
                partition.ready.push_front(offset);
            })
        )
    }

    async fn extend(
        self: CapRc<Self>,
        params: node::ExtendParams,
        mut r: node::ExtendResults,
    ) -> Outcome {
        let cluster = self.enter("extend").await?;
        let params = params.get()?;
        let leases = leases(params.get_leases()?);
        let until = cluster.clock.get() + Duration::from_millis(params.get_visibility_ms().into());
        answer_leases!(
            r,
            settle(&cluster, self.index, &leases, |partition, offset| {
                if let Some((_, ends)) = partition.leases.get_mut(&offset) {
                    *ends = until;
                }
            })
        )
    }

    async fn replay(
        self: CapRc<Self>,
        params: node::ReplayParams,
        mut r: node::ReplayResults,
    ) -> Outcome {
        let cluster = self.enter("replay").await?;
        let params = params.get()?;
        let partitions = cluster.partitions.borrow();
        let partition = &partitions[params.get_partition() as usize];
        if partition.owner != self.index {
            let fault =
                WireFault::new(ErrorCode::NotOwner, "not here").node(cluster.addr(partition.owner));
            convert::write_fault(r.get().init_error(), &fault);
            return Ok(());
        }
        let hwm = partition.log.len() as u64;
        let end = params.get_to().min(hwm);
        let end = end.min(params.get_from() + u64::from(params.get_max_records().min(10)));
        let range = params.get_from()..end.max(params.get_from());
        let mut out = r.get();
        out.set_hwm(hwm);
        out.set_next(range.end);
        let count = u32::try_from(range.end - range.start).unwrap();
        let mut list = out.init_records(count);
        for (index, offset) in (0u32..).zip(range) {
            let mut one = list.reborrow().get(index);
            one.set_offset(offset);
            let record = &partition.log[usize::try_from(offset).unwrap()];
            convert::write_record(one.init_record(), record.as_ref());
        }
        Ok(())
    }

    async fn locate(
        self: CapRc<Self>,
        params: node::LocateParams,
        mut r: node::LocateResults,
    ) -> Outcome {
        let cluster = self.enter("locate").await?;
        let topic = params.get()?.get_topic()?.to_str()?;
        if topic != TOPIC {
            convert::write_fault(r.get().init_error(), &unknown_topic(topic));
            return Ok(());
        }
        let mut out = r.get();
        convert::write_topic(out.reborrow().init_topic(), &Self::topic(&cluster));
        let count = cluster.addrs.borrow().len();
        let mut nodes = out.init_nodes(u32::try_from(count).unwrap());
        for index in 0..count {
            let at = u32::try_from(index).unwrap();
            convert::write_member(nodes.reborrow().get(at), &Self::member(&cluster, index));
        }
        Ok(())
    }

    async fn members(
        self: CapRc<Self>,
        _: node::MembersParams,
        mut r: node::MembersResults,
    ) -> Outcome {
        let cluster = self.enter("members").await?;
        let count = cluster.addrs.borrow().len();
        let mut out = r.get();
        out.set_leader("n0");
        out.set_term(3);
        let mut nodes = out.init_members(u32::try_from(count).unwrap());
        for index in 0..count {
            let at = u32::try_from(index).unwrap();
            convert::write_member(nodes.reborrow().get(at), &Self::member(&cluster, index));
        }
        Ok(())
    }

    async fn describe_topic(
        self: CapRc<Self>,
        params: node::DescribeTopicParams,
        mut r: node::DescribeTopicResults,
    ) -> Outcome {
        let cluster = self.enter("describe_topic").await?;
        let name = params.get()?.get_name()?.to_str()?;
        if name == TOPIC {
            convert::write_topic(r.get().init_topic(), &Self::topic(&cluster));
        } else {
            convert::write_fault(r.get().init_error(), &unknown_topic(name));
        }
        Ok(())
    }

    async fn create_topic(
        self: CapRc<Self>,
        params: node::CreateTopicParams,
        mut r: node::CreateTopicResults,
    ) -> Outcome {
        let cluster = self.enter("create_topic").await?;
        if self.index != 0 {
            let fault = WireFault::new(ErrorCode::NotLeader, "n0 leads").node(cluster.addr(0));
            convert::write_fault(r.get().init_error(), &fault);
            return Ok(());
        }
        let params = params.get()?;
        let settings: TopicSettingsView =
            convert::read_settings_view(params.get_settings()?).unwrap();
        let view = TopicView {
            name: params.get_name()?.to_str()?.into(),
            parent: params.get_parent()?.to_str()?.into(),
            settings,
            ..TopicView::default()
        };
        convert::write_topic(r.get().init_topic(), &view);
        if cluster.moods.borrow()[0] == Mood::Swallow {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    async fn plan(self: CapRc<Self>, _: node::PlanParams, mut r: node::PlanResults) -> Outcome {
        self.enter("plan").await?;
        let mut out = r.get();
        out.reborrow().init_notes(1).set(0, "all is well");
        let step = PlanStepView {
            topic: TOPIC.into(),
            partition: 1,
            from: "n0".into(),
            to: "n1".into(),
            reason: "balance".into(),
            bytes: 0,
        };
        convert::write_plan_step(out.init_steps(1).get(0), &step);
        Ok(())
    }

    async fn throttle(
        self: CapRc<Self>,
        params: node::ThrottleParams,
        mut r: node::ThrottleResults,
    ) -> Outcome {
        let cluster = self.enter("throttle").await?;
        let params = params.get()?;
        if let Mood::Refuse(refusal) = cluster.moods.borrow()[self.index] {
            let fault = WireFault::new(refusal.code(), "refused as asked");
            convert::write_fault(r.get().init_error(), &fault);
            return Ok(());
        }
        if params.get_set() {
            cluster.throttle.set(params.get_bytes_per_s());
        }
        r.get().set_bytes_per_s(cluster.throttle.get());
        Ok(())
    }

    async fn peer(
        self: CapRc<Self>,
        params: node::PeerParams,
        mut r: node::PeerResults,
    ) -> Outcome {
        let cluster = self.enter("peer").await?;
        if params.get()?.get_node()?.to_str()? == "stranger" {
            let fault = WireFault::new(ErrorCode::NotMember, "who are you");
            convert::write_fault(r.get().init_error(), &fault);
            return Ok(());
        }
        r.get()
            .set_peer(capnp_rpc::new_client(TestPeer { cluster }));
        Ok(())
    }
}

/// Leases that have ended: their records are to be delivered again.
fn end_leases(partition: &mut super::Partition, now: Duration) {
    let ended = partition
        .leases
        .iter()
        .filter(|(_, (_, until))| *until <= now);
    let mut ended: Vec<u64> = ended.map(|(offset, _)| *offset).collect();
    ended.sort_unstable();
    for offset in ended.into_iter().rev() {
        partition.leases.remove(&offset);
        partition.ready.push_front(offset);
    }
}

fn take(
    cluster: &Cluster,
    node: usize,
    most: usize,
    local: bool,
    until: Duration,
) -> Vec<(Lease, Record)> {
    let mut partitions = cluster.partitions.borrow_mut();
    let mut out = Vec::new();
    for (index, partition) in (0u32..).zip(partitions.iter_mut()) {
        if local && partition.owner != node {
            continue;
        }
        end_leases(partition, cluster.clock.get());
        while out.len() < most {
            let Some(offset) = partition.ready.pop_front() else {
                break;
            };
            let nonce = cluster.nonces.get() + 1;
            cluster.nonces.set(nonce);
            partition.leases.insert(offset, (nonce, until));
            partition.delivered[usize::try_from(offset).unwrap()] += 1;
            let lease = Lease {
                partition: PartitionIndex(index),
                offset: Offset(offset),
                nonce: narad_core::ids::Nonce(nonce),
            };
            let record = partition.log[usize::try_from(offset).unwrap()].clone();
            out.push((lease, record));
        }
    }
    out
}

struct TestPeer {
    cluster: Rc<Cluster>,
}

impl peer::Server for TestPeer {
    async fn raft(
        self: CapRc<Self>,
        params: peer::RaftParams,
        mut r: peer::RaftResults,
    ) -> Outcome {
        let params = params.get()?;
        if params.get_kind() == 9 {
            std::future::pending::<()>().await;
        }
        r.get().set_body(params.get_body()?);
        Ok(())
    }

    async fn local_moves(
        self: CapRc<Self>,
        _: peer::LocalMovesParams,
        mut r: peer::LocalMovesResults,
    ) -> Outcome {
        let count = self.cluster.addrs.borrow().len();
        r.get().set_moves(&vec![7; count]);
        Ok(())
    }
}
