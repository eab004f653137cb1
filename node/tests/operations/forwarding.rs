//! Records that nobody wants: two nodes, each of which takes itself for leaving and the other one for
//! somebody who takes records. What they pass on to each other ends.

use crate::client::{text, with_client};
use crate::support::{Cluster, wait_for};
use crate::{ok, produce_everywhere, wait_consumed};
use capnp::capability::Rc as CapRc;
use glommio::net::TcpListener;
use narad_core::ids::PartitionIndex;
use narad_schema::client_capnp::node;
use narad_wire::client::Produced;
use narad_wire::convert::{self, Record};
use narad_wire::error::{ErrorCode, WireError, WireFault};
use narad_wire::rpc::{Link, call_on, connect_link};
use narad_wire::runtime::Glommio;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

const CALL: Duration = Duration::from_secs(20);

type Results = Vec<Result<Produced, WireFault>>;

/// Produces at one node, as a node does that passes on what `hops` others have passed on.
async fn produce_with(link: &Link, hops: u8, records: &[Record]) -> Result<Results, WireError> {
    let mut request = link.node().produce_request();
    let mut params = request.get();
    params.set_topic("t");
    params.set_partition(-1);
    params.set_hops(hops);
    let refs = records.iter().map(Record::as_ref);
    convert::write_records(params.init_records(convert::list_len(records.len())), refs);
    call_on(&Glommio, CALL, request.send(), |r| {
        use narad_schema::client_capnp::produce_result::Which;
        convert::check(r.has_error(), r.get_error())?;
        let one = |result: narad_schema::client_capnp::produce_result::Reader<'_>| {
            Ok(match result.which()? {
                Which::Committed(at) => Ok(Produced::Committed {
                    partition: PartitionIndex(at.get_partition()),
                    offset: narad_core::ids::Offset(at.get_offset()),
                }),
                Which::Accepted(()) => Ok(Produced::Accepted),
                Which::Error(fault) => Err(convert::read_fault(fault?)?),
            })
        };
        r.get_results()?.iter().map(one).collect()
    })
    .await
}

/// The other one: it is a member, and takes itself for leaving. What it is sent goes back to where it
/// came from, counted as a node counts it.
struct Mirror {
    back: Link,
    /// Hops of the calls that came.
    seen: RefCell<Vec<u8>>,
}

impl node::Server for Shared {
    async fn produce(
        self: CapRc<Self>,
        params: node::ProduceParams,
        mut answer: node::ProduceResults,
    ) -> Result<(), capnp::Error> {
        let (hops, records) = {
            let params = params.get()?;
            let list = params.get_records()?.iter();
            let records: Result<Vec<Record>, _> = list.map(convert::read_record).collect();
            let records = records.map_err(|error| capnp::Error::failed(error.to_string()))?;
            (params.get_hops(), records)
        };
        self.0.seen.borrow_mut().push(hops);
        assert!(self.0.seen.borrow().len() < 100, "it goes round");
        let results = produce_with(&self.0.back, hops + 1, &records).await;
        let results = results.map_err(|error| capnp::Error::failed(error.to_string()))?;
        let mut list = answer.get().init_results(convert::list_len(results.len()));
        for (at, result) in (0u32..).zip(results) {
            let mut out = list.reborrow().get(at);
            match result {
                Ok(Produced::Committed { partition, offset }) => {
                    let mut at = out.init_committed();
                    at.set_partition(partition.0);
                    at.set_offset(offset.0);
                }
                Ok(Produced::Accepted) => out.set_accepted(()),
                Err(fault) => convert::write_fault(out.init_error(), &fault),
            }
        }
        Ok(())
    }
}

struct Shared(Rc<Mirror>);

/// Makes the mirror a member, through the node that leads.
async fn join(leader: &str, addr: &str) {
    let link = connect_link(&Glommio, leader, CALL).await.expect("a link");
    let mut request = link.node().peer_request();
    request.get().set_node("mirror");
    request.get().set_incarnation(1);
    let peer = call_on(&Glommio, CALL, request.send(), |r| {
        convert::check(r.has_error(), r.get_error())?;
        Ok(r.get_peer()?)
    })
    .await;
    let mut request = peer.expect("a peer").join_request();
    let mut ask = request.get().init_request();
    ask.set_node("mirror");
    ask.set_addr(addr);
    ask.set_bulk_addr(addr);
    ask.set_incarnation(1);
    ask.set_disk(77);
    ask.set_shards(1);
    ask.set_version("test");
    call_on(&Glommio, CALL, request.send(), |r| {
        convert::check(r.has_error(), r.get_error())
    })
    .await
    .expect("it is registered");
}

#[test]
fn what_two_leaving_nodes_pass_on_to_each_other_ends() {
    let mut cluster = Cluster::founders("hops", 3, &[]);
    for node in &mut cluster.nodes {
        // The mirror sends no heartbeats, and must not be found dead meanwhile.
        node.set("--dead-after-ms", "600000");
        node.set("--force-promote-after-ms", "1200000");
    }
    cluster.start_all();
    cluster.wait_ready();
    let leader = cluster.leader();
    let server = cluster.node(&leader).addr();
    ok(&server, &["topic", "create", "t", "--partitions", "3"]);
    let lines = produce_everywhere(&server, "t", 3, 5);
    // Drained, and held by its vote: it takes no records and stays.
    let leaves = if leader == "n1" { "n2" } else { "n1" };
    ok(&server, &["cluster", "decommission", leaves]);
    wait_for("it is done with records", || {
        let member = cluster.node(leaves).member(leaves)?;
        (member["owned"] == 0 && member["draining"] == true).then_some(())
    });
    // Nothing is to be moved to the mirror, which has no disk.
    ok(&server, &["cluster", "pause"]);

    let at = cluster.node(leaves).addr();
    let (at, to) = (at.clone(), server.clone());
    let (taken, refused, seen) = with_client(vec![at.clone()], async move |_| {
        let link = || async { connect_link(&Glommio, &at, CALL).await.expect("a link") };
        let mirror = Rc::new(Mirror {
            back: link().await,
            seen: RefCell::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address").to_string();
        let serving = mirror.clone();
        glommio::spawn_local(async move {
            while let Ok(stream) = listener.accept().await {
                let served = capnp_rpc::new_client(Shared(serving.clone()));
                let line = narad_wire::rpc::Line::default();
                glommio::spawn_local(async move {
                    let _ = narad_wire::rpc::serve(stream, served, line).await;
                })
                .detach();
            }
        })
        .detach();
        join(&to, &addr).await;

        let client = link().await;
        let (mut taken, mut refused) = (Vec::new(), 0);
        // Others take it in turns with the mirror.
        for n in 0..60 {
            let name = format!("sent-{n}");
            let answer = produce_with(&client, 0, &[text(&name)]).await;
            match answer.expect("an answer").remove(0) {
                Ok(_) => taken.push(name),
                Err(fault) => {
                    assert_eq!(fault.code, ErrorCode::Unavailable, "{fault}");
                    assert!(fault.hint.contains("another node"), "{fault:?}");
                    refused += 1;
                }
            }
            if refused >= 3 && taken.len() >= 3 {
                break;
            }
            glommio::timer::sleep(Duration::from_millis(20)).await;
        }
        let seen = mirror.seen.take();
        // What has been passed on as often as is allowed goes nowhere, whoever would take it.
        for _ in 0..6 {
            let answer = produce_with(&client, 2, &[text("too far")]).await;
            let fault = answer.expect("an answer").remove(0).expect_err("refused");
            assert_eq!(fault.code, ErrorCode::Unavailable, "{fault}");
        }
        assert!(mirror.seen.borrow().is_empty(), "{:?}", mirror.seen);
        (taken, refused, seen)
    });
    assert!(taken.len() >= 3 && refused >= 3, "{taken:?}, {refused}");
    // Each went there once, came back once, and that was the end of it.
    assert_eq!(seen, vec![1; refused]);
    wait_consumed(&server, "t", &[lines, taken].concat());
}
