//! Admin calls and the producer against a small cluster over loopback, with moves, deaths, stalls
//! and lost answers.
//!
//! What this file keeps true: no record is lost, whatever a node does; what may have been stored
//! is sent again; what cannot succeed is reported; an order is given once.

mod common;

use common::{Cluster, Mood, Refusal, TOPIC, client, run, until, value};
use futures::future::join_all;
use narad_core::ids::PartitionIndex;
use narad_wire::client::{
    Client, ClientOptions, Produced, ProducerOptions, Record, TopicSettingsView,
};
use narad_wire::error::{ErrorCode, WireError};
use narad_wire::runtime::Glommio;
use std::rc::Rc;
use std::time::Duration;

fn fast() -> ProducerOptions {
    ProducerOptions {
        batch_records: 10,
        attempt: Duration::from_millis(300),
        give_up: Duration::from_secs(60),
        ..ProducerOptions::default()
    }
}

fn keyed(n: usize) -> Record {
    Record::new(value(n)).key(format!("key-{n}"))
}

/// Every one of the records is stored at least once; returns how many are stored more than once.
fn check_stored(cluster: &Cluster, count: usize) -> usize {
    let stored = cluster.stored();
    for n in 0..count {
        assert!(stored.contains_key(&value(n)), "record {n} is lost");
    }
    stored.values().filter(|times| **times > 1).count()
}

#[test]
fn admin_calls_find_their_way_and_give_plain_data() {
    run(async {
        let cluster = Cluster::start(2, 4);
        // Only the second server is known; it does not lead and says who does.
        let client = client(&cluster, &[1]);
        let settings = TopicSettingsView {
            visibility_ms: 1_000,
            dead_letter: "dead".into(),
            ..TopicSettingsView::default()
        };
        let topic = client
            .create_topic("fresh", 3, Some("parent"), &settings)
            .await
            .unwrap();
        assert_eq!(
            (topic.name.as_str(), topic.parent.as_str()),
            ("fresh", "parent")
        );
        assert_eq!(topic.settings, settings);
        assert_eq!(cluster.calls(1, "create_topic"), 1);
        let members = client.members().await.unwrap();
        assert_eq!((members.leader.as_str(), members.term), ("n0", 3));
        assert_eq!(members.members.len(), 2);
        assert_eq!(client.servers().len(), 2, "the other member is learned");
        assert_eq!(client.throttle(Some(1 << 20)).await.unwrap(), 1 << 20);
        assert_eq!(client.throttle(None).await.unwrap(), 1 << 20);
        let plan = client.plan().await.unwrap();
        assert_eq!(
            (plan.steps[0].to.as_str(), plan.notes[0].as_str()),
            ("n1", "all is well")
        );
        let missing = client.describe_topic("nope").await.unwrap_err();
        assert_eq!(missing.code(), Some(ErrorCode::UnknownTopic));
        assert!(missing.to_string().contains("create it"), "{missing}");
        let json = serde_json::to_value(&plan).unwrap();
        assert_eq!(json["steps"][0]["reason"], "balance");
    });
}

#[test]
fn questions_go_round_dead_and_stalled_nodes_and_orders_are_given_once() {
    run(async {
        let cluster = Cluster::start(3, 3);
        cluster.kill(0).await;
        let client = client(&cluster, &[0, 1, 2]);
        assert_eq!(client.info().await.unwrap().id, "n1");
        cluster.mood(1, Mood::Stall);
        assert_eq!(client.describe_topic(TOPIC).await.unwrap().name, TOPIC);
        cluster.revive(0);
        cluster.mood(1, Mood::Fine);
        cluster.mood(0, Mood::Swallow);
        // n0 carries the order out and its answer is lost with the connection.
        let cut = async {
            until("the order", || cluster.calls(0, "create_topic") == 1).await;
            cluster.kill(0).await;
        };
        let settings = TopicSettingsView::default();
        let order = client.create_topic("once", 1, None, &settings);
        let (result, ()) = futures::join!(order, cut);
        let error = result.unwrap_err();
        assert!(error.outcome_unknown(), "{error:?}");
        assert_eq!(cluster.calls(0, "create_topic"), 1);
    });
}

#[test]
fn a_definite_refusal_of_an_order_is_final_and_a_passing_one_is_not() {
    run(async {
        let cluster = Cluster::start(2, 2);
        let client = client(&cluster, &[0, 1]);
        let sent = || cluster.calls(0, "throttle") + cluster.calls(1, "throttle");
        for code in [
            ErrorCode::NotMember,
            ErrorCode::Dead,
            ErrorCode::Refused,
            ErrorCode::Invalid,
            ErrorCode::UnknownTopic,
            ErrorCode::UnknownPartition,
        ] {
            let before = sent();
            for node in 0..2 {
                cluster.mood(node, Mood::Refuse(Refusal(code as u16)));
            }
            let error = client.throttle(Some(1)).await.unwrap_err();
            assert_eq!(error.code(), Some(code), "{error}");
            assert_eq!(sent() - before, 1, "{error}");
        }
        let before = sent();
        cluster.mood(0, Mood::Refuse(Refusal(ErrorCode::NotLeader as u16)));
        cluster.mood(1, Mood::Refuse(Refusal(ErrorCode::NotLeader as u16)));
        let order = client.throttle(Some(7));
        let recover = async {
            until("some attempts", || sent() - before >= 3).await;
            cluster.mood(0, Mood::Fine);
            cluster.mood(1, Mood::Fine);
        };
        let (result, ()) = futures::join!(order, recover);
        assert_eq!(result.unwrap(), 7);
    });
}

#[test]
fn at_the_deadline_the_last_word_of_a_node_is_told() {
    run(async {
        let cluster = Cluster::start(1, 1);
        let options = ClientOptions {
            deadline: Duration::from_millis(700),
            ..ClientOptions::new(vec![cluster.addr(0)])
        };
        let client = Client::with(Glommio, options);
        cluster.mood(0, Mood::Refuse(Refusal(ErrorCode::NotLeader as u16)));
        let error = client.throttle(Some(1)).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::NotLeader), "{error}");
        cluster.mood(0, Mood::Stall);
        let error = client.throttle(Some(1)).await.unwrap_err();
        match error {
            WireError::Timeout { after_ms } => assert!(after_ms > 350, "{after_ms}"),
            other => panic!("{other}"),
        }
    });
}

#[test]
fn keyed_records_go_to_their_owners_in_batches() {
    run(async {
        let cluster = Cluster::start(3, 6);
        let client = client(&cluster, &[0]);
        let producer = client.producer(TOPIC, fast());
        let mut receipts = Vec::new();
        for n in 0..600 {
            receipts.push(producer.send(keyed(n), None).await.unwrap());
        }
        producer.flush().await;
        assert_eq!(producer.pending(), 0);
        for receipt in join_all(receipts).await {
            assert!(matches!(receipt.unwrap(), Produced::Committed { .. }));
        }
        assert_eq!(check_stored(&cluster, 600), 0, "nothing is stored twice");
        let calls: u64 = (0..3).map(|n| cluster.calls(n, "produce")).sum();
        assert!((60..200).contains(&calls), "{calls} calls for 600 records");
        assert!((0..3).all(|n| cluster.calls(n, "produce") > 0));
    });
}

#[test]
fn named_partitions_are_kept_and_unkeyed_records_are_spread() {
    run(async {
        let cluster = Cluster::start(2, 4);
        let client = client(&cluster, &[1]);
        let producer = client.producer(TOPIC, fast());
        for n in 0..40 {
            let to = PartitionIndex(3);
            let receipt = producer
                .send(Record::new(value(n)), Some(to))
                .await
                .unwrap();
            drop(receipt);
        }
        producer.flush().await;
        assert_eq!(cluster.partitions.borrow()[3].log.len(), 40);
        for n in 40..140 {
            producer.send(Record::new(value(n)), None).await.unwrap();
        }
        producer.flush().await;
        assert_eq!(check_stored(&cluster, 140), 0);
        let partitions = cluster.partitions.borrow();
        let by_owner = |node| -> usize {
            let of = partitions.iter().filter(|p| p.owner == node);
            of.map(|p| p.log.len()).sum()
        };
        assert!(by_owner(0) > 20 && by_owner(1) > 60, "not spread");
    });
}

#[test]
fn a_move_costs_a_detour_and_the_new_owner_is_found() {
    run(async {
        let cluster = Cluster::start(2, 2);
        let client = client(&cluster, &[0, 1]);
        let producer = client.producer(TOPIC, fast());
        let mut n = 0;
        let mut send = async |count: usize| {
            let mut receipts = Vec::new();
            for _ in 0..count {
                receipts.push(producer.send(keyed(n), None).await.unwrap());
                n += 1;
            }
            producer.flush().await;
            join_all(receipts).await
        };
        send(100).await;
        cluster.move_to(0, 1);
        let around = send(100).await;
        assert!(
            around.iter().any(|r| matches!(r, Ok(Produced::Accepted))),
            "the old owner took some for the new one"
        );
        glommio::timer::sleep(Duration::from_millis(150)).await;
        send(20).await;
        let before = cluster.calls(0, "produce");
        let after = send(100).await;
        let committed = |r: &Result<Produced, _>| matches!(r, Ok(Produced::Committed { .. }));
        assert!(after.iter().all(committed), "{after:?}");
        assert_eq!(
            cluster.calls(0, "produce"),
            before,
            "the old owner is left alone"
        );
        assert_eq!(check_stored(&cluster, 320), 0);
    });
}

#[test]
fn lost_answers_are_sent_again_and_nothing_is_lost() {
    run(async {
        let cluster = Cluster::start(3, 3);
        let client = client(&cluster, &[0, 1, 2]);
        let producer = client.producer(TOPIC, fast());
        // n1 stores and never answers; n2 dies in the middle.
        cluster.mood(1, Mood::Swallow);
        let mut receipts = Vec::new();
        for n in 0..300 {
            receipts.push(producer.send(keyed(n), None).await.unwrap());
            if n == 150 {
                cluster.kill(2).await;
            }
        }
        producer.flush().await;
        for receipt in join_all(receipts).await {
            receipt.unwrap();
        }
        let twice = check_stored(&cluster, 300);
        assert!(twice > 0, "a lost answer means a repetition");
    });
}

#[test]
fn a_whole_cluster_that_goes_and_comes_back_loses_nothing() {
    run(async {
        let cluster = Cluster::start(2, 2);
        let client = client(&cluster, &[0, 1]);
        let producer = client.producer(TOPIC, fast());
        producer.send(keyed(0), None).await.unwrap().await.unwrap();
        cluster.kill(0).await;
        cluster.kill(1).await;
        let mut receipts = Vec::new();
        for n in 1..100 {
            receipts.push(producer.send(keyed(n), None).await.unwrap());
        }
        glommio::timer::sleep(Duration::from_millis(300)).await;
        assert_eq!(producer.pending(), 99, "nothing can have been stored");
        cluster.revive(0);
        cluster.revive(1);
        producer.flush().await;
        for receipt in join_all(receipts).await {
            receipt.unwrap();
        }
        check_stored(&cluster, 100);
    });
}

#[test]
fn passing_refusals_are_waited_out_and_lasting_ones_reported() {
    run(async {
        let cluster = Cluster::start(2, 2);
        let client = client(&cluster, &[0, 1]);
        let frozen = Refusal(u16::from(ErrorCode::Frozen));
        cluster.mood(0, Mood::Refuse(frozen));
        cluster.mood(1, Mood::Refuse(frozen));
        let producer = client.producer(TOPIC, fast());
        let mut receipts = Vec::new();
        for n in 0..20 {
            receipts.push(producer.send(keyed(n), None).await.unwrap());
        }
        glommio::timer::sleep(Duration::from_millis(200)).await;
        assert_eq!(producer.pending(), 20);
        cluster.mood(0, Mood::Fine);
        cluster.mood(1, Mood::Fine);
        for receipt in join_all(receipts).await {
            receipt.unwrap();
        }
        assert_eq!(
            check_stored(&cluster, 20),
            0,
            "a refused record was not stored"
        );
        let invalid = Refusal(u16::from(ErrorCode::Invalid));
        cluster.mood(0, Mood::Refuse(invalid));
        cluster.mood(1, Mood::Refuse(invalid));
        let calls = cluster.calls(0, "produce") + cluster.calls(1, "produce");
        let error = producer.send(keyed(20), None).await.unwrap().await;
        assert_eq!(error.unwrap_err().code(), Some(ErrorCode::Invalid));
        let after = cluster.calls(0, "produce") + cluster.calls(1, "produce");
        assert_eq!(after, calls + 1, "it is not tried again");
        let nowhere = client.producer("nope", fast());
        let error = nowhere.send(keyed(0), None).await.unwrap().await;
        assert_eq!(error.unwrap_err().code(), Some(ErrorCode::UnknownTopic));
        let huge = Record::new(vec![0; narad_wire::limits::BATCH_MAX_BYTES + 1]);
        let error = producer.send(huge, None).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::TooLarge));
    });
}

#[test]
fn what_waits_in_a_producer_is_bounded() {
    run(async {
        let cluster = Cluster::start(1, 1);
        let client = client(&cluster, &[0]);
        let options = ProducerOptions {
            pending_bytes: 10_000,
            attempt: Duration::from_secs(20),
            ..fast()
        };
        let producer = client.producer(TOPIC, options);
        producer.send(keyed(0), None).await.unwrap().await.unwrap();
        cluster.mood(0, Mood::Stall);
        let sent = Rc::new(std::cell::Cell::new(0usize));
        let count = sent.clone();
        let of = producer.clone();
        let task = glommio::spawn_local(async move {
            for _ in 0..100 {
                of.send(Record::new(vec![1; 1_000]), None).await.unwrap();
                count.set(count.get() + 1);
            }
        });
        glommio::timer::sleep(Duration::from_millis(100)).await;
        assert!(sent.get() < 10, "{} records of 1 kB in 10 kB", sent.get());
        assert_eq!(producer.pending(), sent.get());
        task.cancel().await;
    });
}
