//! Connections that do not end well: leases whose answer does not reach anybody are delivered to others
//! at once, and damaged messages end nothing but their connection.
//!
//! What this file keeps true: visibility is far longer than any test waits, so nothing that is seen
//! here comes back by its timeout.

#[path = "support/client.rs"]
mod client;
mod support;

use client::{ask, leases, one_node, text, three_nodes, topic, value, with_client};
use narad_core::ids::PartitionIndex;
use narad_schema::client_capnp::node;
use narad_wire::client::calls::Settle;
use narad_wire::client::{Client, TopicSettingsView};
use narad_wire::rpc::{Link, connect_link};
use narad_wire::runtime::Glommio;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use support::PATIENCE;

/// An answer that is not done with: its receipt is held.
type Held = capnp::capability::Response<node::consume_results::Owned>;

fn patient_topic() -> TopicSettingsView {
    TopicSettingsView {
        visibility_ms: 600_000,
        ..TopicSettingsView::default()
    }
}

/// A connection that can be cut while answers that came over it are held, as when a process dies: it
/// leads through a relay of this process.
struct Wire {
    link: Link,
    ends: [TcpStream; 2],
}

impl Wire {
    fn cut(&self) {
        for end in &self.ends {
            // The other one may have taken it along already.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Both);
    });
}

async fn wire(addr: &str) -> Wire {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let here = listener.local_addr().unwrap().to_string();
    let node = TcpStream::connect(addr).expect("the node listens");
    let link = connect_link(&Glommio, &here, PATIENCE).await.unwrap();
    let (client, _) = listener.accept().unwrap();
    relay(client.try_clone().unwrap(), node.try_clone().unwrap());
    relay(node.try_clone().unwrap(), client.try_clone().unwrap());
    Wire {
        link,
        ends: [client, node],
    }
}

/// Leases records over this connection, waiting for them.
async fn hold(wire: &Wire, topic: &str, max_records: u32) -> Held {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut request = wire.link.node().consume_request();
        request.get().set_topic(topic);
        request.get().set_max_records(max_records);
        request.get().set_wait_ms(1_000);
        let held = request.send().promise.await.expect("an answer");
        if !held.get().unwrap().get_records().unwrap().is_empty() {
            assert!(held.get().unwrap().has_receipt());
            return held;
        }
        assert!(Instant::now() < until, "nothing to lease");
    }
}

fn values(held: &Held) -> BTreeSet<String> {
    let records = held.get().unwrap().get_records().unwrap();
    let value = |delivery: narad_schema::client_capnp::delivery::Reader<'_>| {
        let value = delivery.get_record().unwrap().get_value().unwrap();
        String::from_utf8(value.to_vec()).unwrap()
    };
    records.iter().map(value).collect()
}

/// Consumes until all of these have come, and acks them.
async fn take_over(client: &Client, topic: &str, mut wanted: BTreeSet<String>) {
    let until = Instant::now() + PATIENCE;
    while !wanted.is_empty() {
        assert!(Instant::now() < until, "nobody gets {wanted:?}");
        let Ok(got) = client.consume_once(topic, ask(100, 500)).await else {
            continue;
        };
        for one in &got {
            wanted.remove(&value(one));
            assert_eq!(one.deliveries, 1, "what did not arrive does not count");
        }
        if !got.is_empty() {
            let acked = client.settle_once(topic, &leases(&got), Settle::Ack).await;
            acked.unwrap();
        }
    }
}

async fn fill(client: &Client, topic: &str, name: &str, records: u32) {
    let records: Vec<_> = (0..records).map(|n| text(&format!("{name}-{n}"))).collect();
    let named = Some(PartitionIndex(0));
    for result in client.produce_once(topic, &records, named).await.unwrap() {
        result.unwrap();
    }
}

#[test]
fn an_answer_that_was_not_received_gives_its_leases_back_and_one_that_was_keeps_them() {
    let (_cluster, addrs) = one_node("receipts-one", &["--shards=2"]);
    with_client(addrs.clone(), async move |client| {
        topic(&client, "jobs", 2, patient_topic()).await;
        for round in 0..5 {
            fill(&client, "jobs", &format!("lost{round}"), 20).await;
            let gone = wire(&addrs[0]).await;
            let held = hold(&gone, "jobs", 20).await;
            let wanted = values(&held);
            assert_eq!(wanted.len(), 20);
            gone.cut();
            take_over(&client, "jobs", wanted).await;
            drop(held);
        }
        // Received, over a connection that ends then: the leases stand, and are acked over another.
        fill(&client, "jobs", "kept", 20).await;
        let other = Client::new(addrs.clone());
        let got = other.consume_once("jobs", ask(20, 1_000)).await.unwrap();
        assert_eq!(got.len(), 20);
        drop(other);
        for _ in 0..5 {
            let again = client.consume_once("jobs", ask(20, 200)).await.unwrap();
            assert!(again.is_empty(), "{again:?}");
        }
        let acked = client.settle_once("jobs", &leases(&got), Settle::Ack).await;
        for result in acked.unwrap() {
            result.expect("the lease stands");
        }
    });
}

/// A consumer asks a node that passes its call on to the owner; either of the two goes away before
/// the answer has arrived.
#[test]
fn leases_that_another_node_passes_on_come_back_when_it_or_its_client_is_gone() {
    let (mut cluster, addrs) = three_nodes("receipts-passed-on");
    let to = addrs.clone();
    let owner = with_client(addrs.clone(), async move |client| {
        topic(&client, "jobs", 1, patient_topic()).await;
        let described = client.describe_topic("jobs").await.unwrap();
        described.partitions[0].owner.clone()
    });
    let at_owner = cluster.node(&owner).addr();
    let others: Vec<usize> = (0..3)
        .filter(|index| cluster.nodes[*index].id != owner)
        .collect();
    let between = cluster.nodes[others[0]].addr();
    let (owner_addr, between_addr) = (at_owner.clone(), between.clone());
    with_client(vec![at_owner.clone()], async move |_| {
        let client = Client::new(vec![owner_addr]);
        fill(&client, "jobs", "client", 50).await;
        let gone = wire(&between_addr).await;
        let held = hold(&gone, "jobs", 50).await;
        let wanted = values(&held);
        gone.cut();
        let mut wanted_again = wanted;
        // What was given back by a call counts as a delivery there; only that it comes matters.
        let until = Instant::now() + PATIENCE;
        while !wanted_again.is_empty() {
            assert!(Instant::now() < until, "nobody gets {wanted_again:?}");
            let got = client.consume_once("jobs", ask(100, 500)).await.unwrap();
            for one in &got {
                wanted_again.remove(&value(one));
            }
            if !got.is_empty() {
                let acked = client.settle_once("jobs", &leases(&got), Settle::Ack).await;
                acked.unwrap();
            }
        }
        drop(held);
    });
    // The node in between is killed, and then stopped in an orderly way.
    for (round, index) in others.into_iter().enumerate() {
        let at = cluster.nodes[index].addr();
        let (told, kill) = std::sync::mpsc::channel();
        let (killed, wait) = std::sync::mpsc::channel::<()>();
        let owner_addr = at_owner.clone();
        let consumer = std::thread::spawn(move || {
            with_client(vec![owner_addr.clone()], async move |_| {
                let client = Client::new(vec![owner_addr]);
                fill(&client, "jobs", &format!("node{round}"), 50).await;
                let passed_on = wire(&at).await;
                let held = hold(&passed_on, "jobs", 50).await;
                told.send(()).unwrap();
                let waited = move || wait.recv().unwrap();
                glommio::executor().spawn_blocking(waited).await;
                take_over(&client, "jobs", values(&held)).await;
                drop(passed_on);
            });
        });
        kill.recv_timeout(PATIENCE).expect("leases are held");
        if round == 0 {
            cluster.nodes[index].kill();
        } else {
            cluster.nodes[index].stop();
        }
        killed.send(()).unwrap();
        consumer.join().expect("the records come to another");
        cluster.nodes[index].start();
        cluster.nodes[index].wait_ready();
    }
    drop(to);
}

/// What a client sends that asks who is there, produces and consumes, all in one go: an answer never
/// comes.
fn recorded_session() -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().unwrap().to_string();
    let record = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    });
    with_client(vec![addr.clone()], async move |_| {
        let link = connect_link(&Glommio, &addr, PATIENCE).await.unwrap();
        let node = link.node();
        let info = node.info_request().send().promise;
        let mut produce = node.produce_request();
        produce.get().set_topic("orders");
        produce.get().init_records(1).get(0).set_value(b"a record");
        let produce = produce.send().promise;
        let mut consume = node.consume_request();
        consume.get().set_topic("orders");
        let consume = consume.send().promise;
        // Long enough to be written; what else it leaves out is left out of every session.
        let wait = glommio::timer::sleep(Duration::from_millis(300));
        let asked = futures::future::join3(info, produce, consume);
        let _ = futures::future::select(Box::pin(wait), Box::pin(asked)).await;
    });
    record.join().unwrap()
}

#[test]
fn damaged_messages_end_their_connection_and_not_the_node() {
    let session = recorded_session();
    assert!(session.len() > 300, "{} bytes recorded", session.len());
    let (mut cluster, addrs) = one_node("damaged-messages", &[]);
    with_client(addrs.clone(), async |client| {
        topic(&client, "orders", 1, patient_topic()).await;
    });
    let mut answered = 0;
    for bit in (0..session.len() * 8).step_by(5) {
        let mut bad = session.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let mut stream = TcpStream::connect(&addrs[0]).expect("the node listens");
        // A node that has heard enough does not read to the end.
        let _ = stream.write_all(&bad);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answered += usize::from(!answer.is_empty());
    }
    assert!(answered > 0, "some of the damage is harmless");
    assert!(cluster.nodes[0].runs());
    with_client(addrs, async |client| {
        // One bit makes a removal of the topic of what produces into it.
        topic(&client, "orders", 1, patient_topic()).await;
        let again = client.produce_once("orders", &[text("after")], None).await;
        again.expect("an answer")[0].as_ref().expect("taken");
    });
}
