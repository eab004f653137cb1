//! What goes out comes back the same, and damaged or newer messages give errors, not panics.

use capnp::message::{Builder, ReaderOptions};
use narad_core::copy::{Manifest, SegmentId, SegmentState};
use narad_core::ids::{
    Epoch, Offset, Origin, PartitionIndex, PartitionKey, TopicId, WalId, WalSeq,
};
use narad_core::meta::TopicSettings;
use narad_schema::client_capnp::{member, move_, topic, topic_settings};
use narad_schema::common_capnp::{error, partition, record};
use narad_schema::peer_capnp::manifest;
use narad_wire::client::{
    FreezeSplitView, MemberView, MoveView, PartitionView, TopicSettingsView, TopicView,
};
use narad_wire::convert::{self, CopyManifest, Record};
use narad_wire::error::{ErrorCode, WireError, WireFault};

/// Writes into a message, sends it through bytes, reads it again.
macro_rules! through {
    ($module:ident, |$builder:ident| $write:expr, |$reader:ident| $read:expr) => {{
        let mut message = Builder::new_default();
        {
            let $builder = message.init_root::<$module::Builder<'_>>();
            $write;
        }
        let bytes = capnp::serialize::write_message_to_words(&message);
        let message =
            capnp::serialize::read_message(bytes.as_slice(), ReaderOptions::new()).unwrap();
        let $reader = message.get_root::<$module::Reader<'_>>().unwrap();
        $read
    }};
}

fn manifest() -> Manifest {
    let segment = |base: u64, end: u64, sealed| SegmentState {
        id: SegmentId {
            base: Offset(base),
            epoch: Epoch(2),
        },
        durable_len: 512 * (end - base),
        digest: 0xdead_beef,
        end: Offset(end),
        sealed,
    };
    Manifest {
        segments: vec![segment(0, 10, true), segment(10, 25, false)],
        start: Offset(3),
        hwm: Offset(24),
        frontier: Offset(7),
        marks: vec![Origin {
            wal: WalId(u64::MAX),
            seq: WalSeq(9),
        }],
        fence: Some((Offset(20), Offset(25))),
    }
}

#[test]
fn manifests_survive_with_and_without_a_fence() {
    let without = Manifest {
        fence: None,
        ..manifest()
    };
    for manifest in [manifest(), without, Manifest::default()] {
        let copy = CopyManifest {
            manifest,
            write_bytes_per_s: 5,
            bulk_token: u64::MAX,
        };
        let back = through!(manifest, |b| convert::write_copy_manifest(b, &copy), |r| {
            convert::read_copy_manifest(r).unwrap()
        });
        assert_eq!(back, copy);
    }
}

#[test]
fn a_manifest_whose_lengths_cannot_be_added_up_is_refused() {
    let mut one = manifest();
    one.segments[0].durable_len = u64::MAX;
    let read = through!(manifest, |b| convert::write_manifest(b, &one), |r| {
        convert::read_manifest(r)
    });
    assert!(matches!(read, Err(WireError::Protocol { .. })), "{read:?}");
}

#[test]
fn a_manifest_out_of_order_is_refused() {
    let mut swapped = manifest();
    swapped.segments.swap(0, 1);
    let mut overlapping = manifest();
    overlapping.segments[0].end = Offset(11);
    let mut backwards = manifest();
    backwards.segments[1].end = Offset(9);
    for bad in [swapped, overlapping, backwards] {
        let result = through!(manifest, |b| convert::write_manifest(b, &bad), |r| {
            convert::read_manifest(r)
        });
        assert!(matches!(result, Err(WireError::Protocol { .. })));
    }
}

#[test]
fn no_key_and_an_empty_key_stay_apart() {
    for key in [None, Some(vec![]), Some(b"k".to_vec())] {
        let sent = Record {
            key,
            ..Record::new("value")
        };
        let back = through!(record, |b| convert::write_record(b, sent.as_ref()), |r| {
            convert::read_record(r).unwrap()
        });
        assert_eq!(back, sent);
    }
}

#[test]
fn faults_survive_and_a_newer_code_is_an_unknown_outcome() {
    let fault = WireFault::new(ErrorCode::NotOwner, "not here")
        .hint("ask there")
        .retry_after_ms(70)
        .detail("{}")
        .node("127.0.0.1:1");
    let bytes = {
        let mut message = Builder::new_default();
        convert::write_fault(message.init_root::<error::Builder<'_>>(), &fault);
        capnp::serialize::write_message_to_words(&message)
    };
    let read = |bytes: &[u8]| {
        let message = capnp::serialize::read_message(bytes, ReaderOptions::new()).unwrap();
        convert::read_fault(message.get_root::<error::Reader<'_>>().unwrap())
    };
    assert_eq!(read(&bytes).unwrap(), fault);
    assert_eq!(
        convert::check(false, Err(capnp::Error::failed("x".into()))).ok(),
        Some(())
    );
    // The code is the first data field of the only struct: a number from the future.
    let mut newer = bytes.clone();
    let at = 16;
    assert_eq!(newer[at..at + 2], [8, 0]);
    newer[at..at + 2].copy_from_slice(&[0x39, 0x30]);
    let unknown = read(&newer).unwrap();
    assert_eq!(unknown.code, ErrorCode::Internal);
    assert!(unknown.message.contains("12345"), "{unknown}");
    assert!(WireError::Fault(unknown).outcome_unknown());
}

#[test]
fn flipped_bits_never_panic() {
    let bytes = {
        let mut message = Builder::new_default();
        convert::write_manifest(message.init_root::<manifest::Builder<'_>>(), &manifest());
        capnp::serialize::write_message_to_words(&message)
    };
    let mut errors = 0;
    for at in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[at / 8] ^= 1 << (at % 8);
        let Ok(message) = capnp::serialize::read_message(bad.as_slice(), ReaderOptions::new())
        else {
            errors += 1;
            continue;
        };
        let root = message.get_root::<manifest::Reader<'_>>();
        errors += usize::from(!root.is_ok_and(|r| convert::read_copy_manifest(r).is_ok()));
    }
    assert!(errors > 0, "some of the damage has to be noticed");
}

#[test]
fn keys_views_and_settings_survive() {
    let key = PartitionKey {
        topic: TopicId(u64::MAX),
        partition: PartitionIndex(u32::MAX),
    };
    let back = through!(partition, |b| convert::write_partition_key(b, key), |r| {
        convert::read_partition_key(r)
    });
    assert_eq!(back, key);
    let view = MoveView {
        topic: "orders".into(),
        partition: 3,
        source: "a".into(),
        target: "b".into(),
        move_id: 8,
        phase: "catch_up".into(),
        bytes_done: 300,
        bytes_left: 100,
        bytes_per_s: 150,
        write_bytes_per_s: 50,
        passes: 2,
        converged: true,
        elapsed_ms: 10,
        freeze_us: 20,
        split: FreezeSplitView {
            settle_us: 1,
            drain_us: 2,
            persist_us: 3,
            install_us: 4,
            flip_us: 5,
            takeover_us: 6,
        },
        last_error: "e".into(),
        handoff_id: 9,
        outcome: "flipped".into(),
        tails: vec![5, 4, 3],
        manual: true,
        frozen_for_us: 21,
    };
    let back = through!(move_, |b| convert::write_move(b, &view), |r| {
        convert::read_move(r).unwrap()
    });
    assert_eq!(back, view);
    assert_eq!((view.percent(), view.eta_ms()), (75, Some(1_000)));
    assert_eq!(
        (MoveView::default().percent(), MoveView::default().eta_ms()),
        (100, Some(0))
    );
    let settings = TopicSettings {
        retention_ms: Some(4),
        max_deliveries: Some(3),
        ..TopicSettings::default()
    };
    let back = through!(
        topic_settings,
        |b| convert::write_settings(b, &settings),
        |r| convert::read_settings(r).unwrap()
    );
    assert_eq!(back, settings);
    let zeros = convert::settings_from_view(&TopicSettingsView::default()).unwrap();
    assert_eq!(zeros, TopicSettings::default());
    let bad = TopicSettingsView {
        dead_letter: "../x".into(),
        ..TopicSettingsView::default()
    };
    assert!(convert::settings_from_view(&bad).is_err());
    let topic = TopicView {
        id: 1,
        name: "t".into(),
        parent: "p".into(),
        settings: convert::settings_to_view(&settings),
        partitions: vec![PartitionView {
            index: 2,
            owner: "a".into(),
            epoch: 3,
            target: "b".into(),
            move_id: 4,
            handoff_id: 5,
            start: 6,
            hwm: 7,
            frontier: 8,
            bytes: 9,
            known: true,
        }],
    };
    let back = through!(topic, |b| convert::write_topic(b, &topic), |r| {
        convert::read_topic(r).unwrap()
    });
    assert_eq!(back, topic);
    let member = MemberView {
        id: "a".into(),
        addr: "b:1".into(),
        bulk_addr: "b:2".into(),
        http_addr: "b:3".into(),
        status: "alive".into(),
        draining: true,
        role: "voter".into(),
        owned: 1,
        inbound: 2,
        outbound: 3,
        shards: 4,
        version: "5".into(),
        disk_free_bytes: Some(6),
        disk_used_bytes: Some(7),
        undispatched: Some(8),
        held: "quorum".into(),
        incarnation: 9,
    };
    let untold = MemberView {
        disk_free_bytes: None,
        disk_used_bytes: None,
        undispatched: None,
        ..member.clone()
    };
    for member in [member, untold] {
        let back = through!(member, |b| convert::write_member(b, &member), |r| {
            convert::read_member(r).unwrap()
        });
        assert_eq!(back, member);
    }
}
