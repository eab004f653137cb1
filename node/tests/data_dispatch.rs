//! A dispatch that comes again: its answer was lost, or its partition has moved since.
//!
//! What this file keeps true: this test speaks as a node would, over the interface between nodes; what
//! an owner has is recognised by WAL and sequence, wherever the partition has gone.

#[path = "support/client.rs"]
mod client;
mod support;

use client::{text, three_nodes, topic, with_client};
use narad_core::ids::{PartitionIndex, PartitionKey, TopicId};
use narad_schema::peer_capnp::peer;
use narad_wire::client::{Client, PartitionView, TopicSettingsView};
use narad_wire::convert::{Record, list_len, write_partition_key, write_records};
use narad_wire::rpc::connect_link;
use narad_wire::runtime::Glommio;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};
use support::PATIENCE;

/// The WAL that the dispatches claim to come from; nobody has this one.
const WAL: u64 = 0x7e57_7e57;

async fn partition(client: &Client) -> (TopicId, PartitionView) {
    let described = client.describe_topic("again").await.unwrap();
    (TopicId(described.id), described.partitions[0].clone())
}

/// An owner's interface for nodes, asked for in the name of another one.
async fn owner(client: &Client, id: &str) -> (narad_wire::rpc::Link, peer::Client) {
    let members = client.members().await.unwrap().members;
    let owner = members.iter().find(|member| member.id == id).unwrap();
    let other = members.iter().find(|member| member.id != id).unwrap();
    let link = connect_link(&Glommio, &owner.addr, PATIENCE).await.unwrap();
    let mut request = link.node().peer_request();
    request.get().set_node(&other.id);
    request.get().set_incarnation(other.incarnation);
    let answer = request.send().promise.await.unwrap();
    (link, answer.get().unwrap().get_peer().unwrap())
}

fn dispatch(
    to: &peer::Client,
    topic: TopicId,
    epoch: u64,
    seqs: RangeInclusive<u64>,
) -> capnp::capability::RemotePromise<peer::append_results::Owned> {
    let mut request = to.append_request();
    let mut params = request.get();
    let key = PartitionKey {
        topic,
        partition: PartitionIndex(0),
    };
    write_partition_key(params.reborrow().init_partition(), key);
    params.set_epoch(epoch);
    params.set_wal(WAL);
    let records: Vec<Record> = seqs
        .clone()
        .map(|seq| text(&format!("seq {seq}")))
        .collect();
    let mut list = params.reborrow().init_seqs(list_len(records.len()));
    for (index, seq) in (0u32..).zip(seqs) {
        list.set(index, seq);
    }
    let count = list_len(records.len());
    write_records(
        params.init_records(count),
        records.iter().map(Record::as_ref),
    );
    request.send()
}

/// The end of the log and how many were known, once the owner takes them.
async fn dispatched(
    to: &peer::Client,
    topic: TopicId,
    epoch: u64,
    seqs: RangeInclusive<u64>,
) -> (u64, u32) {
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = dispatch(to, topic, epoch, seqs.clone()).promise.await;
        let answer = answer.expect("an answer");
        let answer = answer.get().unwrap();
        if !answer.has_error() {
            return (answer.get_end(), answer.get_duplicates());
        }
        let message = answer.get_error().unwrap().get_message().unwrap();
        assert!(Instant::now() < until, "{message:?}");
        glommio::timer::sleep(Duration::from_millis(100)).await;
    }
}

#[test]
fn a_dispatch_that_comes_again_is_recognised_also_after_a_move() {
    let (mut cluster, addrs) = three_nodes("dispatch-again");
    cluster.leader();
    with_client(addrs, async move |client| {
        topic(&client, "again", 1, TopicSettingsView::default()).await;
        let (id, first) = partition(&client).await;
        let (_link, at) = owner(&client, &first.owner).await;
        assert_eq!(dispatched(&at, id, first.epoch, 1..=50).await, (50, 0));
        assert_eq!(dispatched(&at, id, first.epoch, 1..=50).await, (50, 50));
        assert_eq!(dispatched(&at, id, first.epoch, 26..=75).await, (75, 25));

        // Its answer is lost: the connection ends while the owner works on it.
        for _ in 0..5 {
            let (link, at) = owner(&client, &first.owner).await;
            let sent = dispatch(&at, id, first.epoch, 76..=100).promise;
            let pause = std::pin::pin!(glommio::timer::sleep(Duration::from_millis(2)));
            futures::future::select(sent, pause).await;
            drop((link, at));
        }
        let (end, _) = dispatched(&at, id, first.epoch, 76..=100).await;
        assert_eq!(end, 100, "appended more than once");

        let members = client.members().await.unwrap().members;
        let to = members.iter().find(|member| member.id != first.owner);
        let to = to.unwrap().id.clone();
        let index = PartitionIndex(0);
        let until = Instant::now() + PATIENCE;
        while let Err(error) = client.move_to("again", index, &to).await {
            assert!(Instant::now() < until, "{error}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
        let moved = loop {
            let (_, now) = partition(&client).await;
            if now.owner == to && now.target.is_empty() {
                break now;
            }
            assert!(Instant::now() < until, "{now:?}");
            glommio::timer::sleep(Duration::from_millis(100)).await;
        };
        let (_link, at) = owner(&client, &to).await;
        assert_eq!(dispatched(&at, id, moved.epoch, 1..=100).await, (100, 100));
        assert_eq!(dispatched(&at, id, moved.epoch, 90..=110).await, (110, 11));
        // The former owner, and the former epoch, are nobody any more.
        let answer = dispatch(&at, id, first.epoch, 111..=112).promise.await;
        assert!(answer.unwrap().get().unwrap().has_error());
    });
}
