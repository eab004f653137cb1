//! Topic settings changed while the topic is used, replay by time, and batches whose client is gone.

#[path = "support/client.rs"]
mod client;
mod support;

use client::{ask, leases, one_node, text, topic, value, with_client};
use narad_core::ids::{Offset, PartitionIndex, WallMs};
use narad_core::meta::Setting;
use narad_wire::client::calls::{ReplayRequest, Settle};
use narad_wire::client::{Client, TopicSettingsView};
use narad_wire::convert::{Record, list_len, write_records};
use narad_wire::error::ErrorCode;
use narad_wire::rpc::connect_link;
use narad_wire::runtime::Glommio;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use support::PATIENCE;

#[test]
fn settings_take_effect_while_the_topic_is_used() {
    let (_cluster, addrs) = one_node("settings-live", &["--shards=2"]);
    with_client(addrs, async |client| {
        let patient = TopicSettingsView {
            visibility_ms: 600_000,
            ..TopicSettingsView::default()
        };
        topic(&client, "jobs", 1, patient).await;
        let records: Vec<Record> = (0..40).map(|n| text(&format!("r{n}"))).collect();
        let placed = client.produce_once("jobs", &records, None).await;
        assert!(placed.unwrap().iter().all(Result::is_ok));

        // Fewer at a time: what is out stays out, and no more comes until there is room.
        let few = TopicSettingsView {
            max_leases: 3,
            ..TopicSettingsView::default()
        };
        let altered = client
            .alter_topic("jobs", &few, &[Setting::MaxLeases])
            .await;
        let altered = altered.unwrap().settings;
        assert_eq!((altered.max_leases, altered.visibility_ms), (3, 600_000));
        let got = client.consume_once("jobs", ask(40, 0)).await.unwrap();
        assert_eq!(got.len(), 3);
        let more = client.consume_once("jobs", ask(40, 0)).await.unwrap();
        assert!(more.is_empty());
        let acked = client.settle_once("jobs", &leases(&got), Settle::Ack).await;
        acked.unwrap();

        // Shorter visibility: what is delivered from now on comes again by itself.
        let short = TopicSettingsView {
            visibility_ms: 100,
            ..TopicSettingsView::default()
        };
        let change = [Setting::VisibilityMs];
        client.alter_topic("jobs", &short, &change).await.unwrap();
        let first = client.consume_once("jobs", ask(3, 30_000)).await.unwrap();
        let again = client.consume_once("jobs", ask(3, 30_000)).await.unwrap();
        assert_eq!(value(&first[0]), value(&again[0]));
        assert_eq!(again[0].deliveries, 2);

        // Smaller records: larger ones are refused from now on.
        let small = TopicSettingsView {
            max_record_bytes: 10,
            ..TopicSettingsView::default()
        };
        let change = [Setting::MaxRecordBytes];
        client.alter_topic("jobs", &small, &change).await.unwrap();
        let mixed = [text("short"), text("longer than ten bytes")];
        let placed = client.produce_once("jobs", &mixed, None).await.unwrap();
        assert!(placed[0].is_ok());
        assert_eq!(
            placed[1].as_ref().unwrap_err().code,
            ErrorCode::TooLarge,
            "{placed:?}"
        );

        // What makes no sense changes nothing.
        let bad = TopicSettingsView {
            max_deliveries: 3,
            ..TopicSettingsView::default()
        };
        let change = [Setting::MaxDeliveries];
        let refused = client.alter_topic("jobs", &bad, &change).await;
        assert_eq!(refused.unwrap_err().code(), Some(ErrorCode::Invalid));
        let unknown = client.alter_topic("nowhere", &short, &change).await;
        assert_eq!(unknown.unwrap_err().code(), Some(ErrorCode::UnknownTopic));
        let empty = client.alter_topic("jobs", &short, &[]).await;
        assert_eq!(empty.unwrap_err().code(), Some(ErrorCode::Invalid));
    });
}

#[test]
fn a_replay_begins_at_a_time() {
    let (_cluster, addrs) = one_node("replay-time", &[]);
    with_client(addrs, async |client| {
        topic(&client, "times", 1, TopicSettingsView::default()).await;
        for batch in 0..20u64 {
            let records: Vec<Record> = (0..10)
                .map(|n| Record {
                    time: WallMs(1_000_000 + batch * 1_000 + n),
                    ..text(&format!("{batch}-{n}"))
                })
                .collect();
            let placed = client.produce_once("times", &records, None).await;
            placed.unwrap()[0].as_ref().unwrap();
        }
        let replay = async |from, from_time| {
            let ask = ReplayRequest {
                partition: PartitionIndex(0),
                from: Offset(from),
                from_time: WallMs(from_time),
                to: Offset(u64::MAX),
                max_records: 1_000,
                max_bytes: 1 << 20,
            };
            let batch = client.replay_once("times", ask).await.unwrap();
            batch.records.first().map(|one| one.offset.0)
        };
        assert_eq!(replay(0, 0).await, Some(0));
        assert_eq!(replay(0, 1_007_004).await, Some(74));
        assert_eq!(replay(0, 1_007_500).await, Some(80), "the first behind it");
        assert_eq!(replay(90, 1_007_004).await, Some(90), "whichever is later");
        assert_eq!(replay(0, 1).await, Some(0));
        assert_eq!(replay(0, 9_000_000).await, None, "nothing is that new");

        let mut whole = client
            .replay("times", PartitionIndex(0), Offset(0), None)
            .from_time(WallMs(1_007_004));
        let mut count = 0;
        while let Some(batch) = whole.next().await.unwrap() {
            count += batch.records.len();
        }
        assert_eq!(count, 200 - 74);
    });
}

/// Connections are cut at every moment of a call; each batch is there as a whole, or not at all.
#[test]
fn a_client_that_goes_away_in_the_middle_of_a_call_leaves_no_half_batch() {
    const RECORDS: usize = 60;
    let (_cluster, addrs) = one_node("half-batch", &["--shards=2"]);
    with_client(addrs.clone(), async move |client| {
        topic(&client, "whole", 3, TopicSettingsView::default()).await;
        // Made, so that nothing waits for it below.
        client
            .produce_once("whole", &[text("first")], None)
            .await
            .unwrap();
        for call in 0..40u64 {
            let link = connect_link(&Glommio, &addrs[0], Duration::from_secs(10)).await;
            let link = link.unwrap();
            let mut request = link.node().produce_request();
            request.get().set_topic("whole");
            // Large enough for several group commits, over all partitions and both shards.
            let records: Vec<Record> = (0..RECORDS)
                .map(|n| {
                    let mut value = format!("{call} ").into_bytes();
                    value.resize(10 << 10, b'.');
                    Record::new(value).key(format!("k{n}").into_bytes())
                })
                .collect();
            let list = request.get().init_records(list_len(records.len()));
            write_records(list, records.iter().map(Record::as_ref));
            let sent = request.send();
            let pause = glommio::timer::sleep(Duration::from_micros(call * 400));
            futures::future::select(sent.promise, std::pin::pin!(pause)).await;
            drop(link);
        }
        let mut last = BTreeMap::new();
        let until = Instant::now() + PATIENCE;
        loop {
            let found = found(&client).await;
            let whole = found.values().all(|count| *count == RECORDS);
            // Twice the same: nothing is under way any more.
            if whole && found == last && !found.is_empty() {
                break;
            }
            assert!(Instant::now() < until, "half a batch stays: {found:?}");
            last = found;
            glommio::timer::sleep(Duration::from_millis(500)).await;
        }
    });
}

/// Records of each call that are in the logs.
async fn found(client: &Client) -> BTreeMap<u64, usize> {
    let mut found = BTreeMap::new();
    for partition in (0..3).map(PartitionIndex) {
        let mut replay = client.replay("whole", partition, Offset(0), None);
        while let Some(batch) = replay.next().await.unwrap() {
            for one in &batch.records {
                let value = String::from_utf8_lossy(&one.record.value);
                if let Some(Ok(call)) = value.split(' ').next().map(str::parse) {
                    *found.entry(call).or_insert(0) += 1;
                }
            }
        }
    }
    found
}
