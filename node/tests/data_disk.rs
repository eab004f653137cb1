//! What a node does with its disk: idle partitions give back files and space, retention deletes, and a
//! disk that fills up refuses produce early, with its own error, and loses nothing; records pass by a
//! partition that an error has stopped.

#[path = "support/client.rs"]
mod client;
#[path = "../../storage/tests/common/small_disk.rs"]
mod small_disk;
mod support;

use client::{ask, leases, one_node, topic, with_client};
use narad_core::ids::PartitionIndex;
use narad_core::meta::Setting;
use narad_wire::client::calls::Settle;
use narad_wire::client::{Client, TopicSettingsView};
use narad_wire::convert::Record;
use narad_wire::error::ErrorCode;
use nix::sys::signal::{SigHandler, Signal, signal};
use small_disk::small_disk;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::{Cluster, Node, PATIENCE, limit_files, wait_for};

const MIB: u64 = 1 << 20;

/// Segment files of all partitions of a node.
fn segments(data: &Path) -> Vec<PathBuf> {
    let Ok(partitions) = std::fs::read_dir(data.join("partitions")) else {
        return Vec::new();
    };
    let dirs = partitions.map(|entry| entry.expect("readable").path());
    let files = dirs.flat_map(|dir| std::fs::read_dir(dir).into_iter().flatten());
    let mut found: Vec<PathBuf> = files.map(|entry| entry.expect("readable").path()).collect();
    found.retain(|path| path.extension().is_some_and(|ext| ext == "seg"));
    found.sort();
    found
}

/// Open files of a process below a directory's partitions.
fn open_files(pid: i32, data: &Path) -> usize {
    let below = data.join("partitions");
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process is ours");
    fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .filter(|path| path.starts_with(&below))
        .count()
}

/// One batch of a MiB, into partition 0; every record begins with its number.
async fn produce_mib(client: &Client, first: u64) -> Result<(), Option<ErrorCode>> {
    let records: Vec<Record> = (0..16)
        .map(|n| {
            let mut value = format!("{:010}", first + n).into_bytes();
            value.resize(64 << 10, b'.');
            Record::new(value)
        })
        .collect();
    let placed = client
        .produce_once("jobs", &records, Some(PartitionIndex(0)))
        .await;
    let placed = placed.map_err(|error| error.code())?;
    match placed.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(refused) => Err(Some(refused.code)),
    }
}

#[test]
fn an_idle_partition_gives_back_files_and_space_and_retention_deletes() {
    let (cluster, addrs) = one_node("disk-idle", &[]);
    let (pid, data) = (cluster.nodes[0].pid(), cluster.nodes[0].dir.clone());
    with_client(addrs.clone(), async |client| {
        let settings = TopicSettingsView {
            retention_bytes: 24 * MIB,
            ..TopicSettingsView::default()
        };
        topic(&client, "jobs", 1, settings).await;
        for n in 0..40 {
            produce_mib(&client, n * 16).await.unwrap();
        }
    });
    // Retention may have been there already.
    let first = segments(&data)[0].with_file_name("00000000000000000000-1.seg");
    wait_for("retention deletes the oldest segment", || {
        (!first.exists()).then_some(())
    });
    wait_for("an idle partition has no open file", || {
        (open_files(pid, &data) == 0).then_some(())
    });
    // The space reserved ahead is gone with them: what is left is what retention keeps.
    let left: u64 = segments(&data)
        .iter()
        .map(|path| path.metadata().expect("it is there").blocks() * 512)
        .sum();
    assert!(left <= 25 * MIB, "{left}");
    with_client(addrs, async |client| {
        produce_mib(&client, 640).await.unwrap();
        let got = client.consume_once("jobs", ask(16, 10_000)).await.unwrap();
        assert!(!got.is_empty());
    });
}

/// The value of a counter or gauge without labels.
fn metric(node: &Node, name: &str) -> u64 {
    let text = node
        .http("GET", "/metrics")
        .map_or_else(String::new, |(_, text)| text);
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    let value = lines.find(|(found, _)| *found == name);
    value.map_or(0, |(_, value)| value.parse().expect("a whole number"))
}

/// Flips one bit of a record that is stored in this file, and tells its number.
fn decay(segment: &Path) -> u64 {
    let bytes = std::fs::read(segment).expect("it is there");
    let at = bytes.len() / 2;
    let file = std::fs::File::options().write(true).open(segment);
    let file = file.expect("it can be written");
    file.write_all_at(&[bytes[at] ^ 4], at as u64).unwrap();
    file.sync_all().unwrap();
    // A record is its number and dots: the last number in front of the place.
    let digit = |b: &u8| b.is_ascii_digit();
    let end = bytes[..at].windows(10).rposition(|w| w.iter().all(digit));
    let from = end.expect("a number is in front");
    String::from_utf8_lossy(&bytes[from..from + 10])
        .parse()
        .unwrap()
}

#[test]
fn decay_of_a_sealed_segment_is_told_before_a_consumer_meets_it() {
    let settings = ["--scrub-every-ms=1000", "--cache-bytes=65536"];
    let mut cluster = Cluster::founders("disk-decay", 1, &settings);
    cluster.nodes[0].set("--segment-bytes", "1048576");
    cluster.start_all();
    cluster.wait_ready();
    let addrs = vec![cluster.nodes[0].addr()];
    let count = 64;
    with_client(addrs.clone(), async move |client| {
        topic(&client, "jobs", 1, TopicSettingsView::default()).await;
        for n in 0..count {
            // One record a frame.
            let mut value = format!("{n:010}").into_bytes();
            value.resize(64 << 10, b'.');
            let one = [Record::new(value)];
            let placed = client
                .produce_once("jobs", &one, Some(PartitionIndex(0)))
                .await;
            assert!(placed.unwrap().iter().all(Result::is_ok));
        }
    });
    let node = &cluster.nodes[0];
    let all: u64 = 2 << 20;
    wait_for("sealed segments are read again, and are fine", || {
        (metric(node, "narad_scrubbed_bytes_total") > all).then_some(())
    });
    assert_eq!(metric(node, "narad_decayed_segments_total"), 0);

    let gone = decay(&segments(&node.dir)[0]);
    wait_for("the decay is told", || {
        (metric(node, "narad_decayed_segments_total") > 0).then_some(())
    });
    assert_eq!(
        metric(node, "narad_skipped_records_total"),
        0,
        "nobody met it"
    );
    let log = node.log();
    assert!(log.contains("the disk has lost records"), "{log}");
    // It is told once, however often the segment is read.
    let read = metric(node, "narad_scrubbed_bytes_total");
    wait_for("it is read again", || {
        (metric(node, "narad_scrubbed_bytes_total") > read + 2 * all).then_some(())
    });
    assert_eq!(metric(node, "narad_decayed_segments_total"), 1);

    let wanted: Vec<u64> = (0..count).filter(|n| *n != gone).collect();
    let seen = with_client(addrs, async move |client| {
        let (mut seen, until) = (Vec::<u64>::new(), Instant::now() + PATIENCE);
        while seen.len() < wanted.len() {
            assert!(Instant::now() < until, "{seen:?}");
            let got = client.consume_once("jobs", ask(16, 1_000)).await.unwrap();
            let numbers = got.iter().map(|one| {
                String::from_utf8_lossy(&one.record.value[..10])
                    .parse::<u64>()
                    .unwrap()
            });
            seen.extend(numbers);
            let acks = client.settle_once("jobs", &leases(&got), Settle::Ack).await;
            acks.unwrap();
        }
        assert_eq!(seen, wanted);
        seen.len() as u64
    });
    assert_eq!(seen, count - 1);
    assert_eq!(metric(node, "narad_skipped_records_total"), 1);
}

#[test]
fn a_disk_that_fills_up_refuses_produce_early_and_loses_nothing() {
    let mut cluster = Cluster::founders("disk-full", 1, &[]);
    let data = cluster.nodes[0].dir.clone();
    let image = cluster.dir.join("image");
    let Some(mount) = small_disk(&image, &data, 420 * MIB) else {
        return;
    };
    cluster.start_all();
    cluster.wait_ready();
    let addrs = vec![cluster.nodes[0].addr()];
    let at = data.clone();
    with_client(addrs, async move |client| {
        topic(&client, "jobs", 1, TopicSettingsView::default()).await;
        let mut acked = 0;
        let refused = loop {
            match produce_mib(&client, acked).await {
                Ok(()) => acked += 16,
                Err(code) => break code,
            }
            assert!(acked < 420 * 16, "the disk is larger than it is");
        };
        assert_eq!(refused, Some(ErrorCode::DiskFull));
        assert!(acked > 16 * 16, "{acked}");
        // Early: what the node keeps for itself is still there.
        let free = nix::sys::statvfs::statvfs(&at).expect("the disk is there");
        let free = free.blocks_available() as u64 * free.fragment_size() as u64;
        assert!(free >= 200 * MIB, "{free}");

        let mut next = 0;
        let until = Instant::now() + PATIENCE;
        while next < acked {
            assert!(Instant::now() < until, "{next} of {acked} came");
            let got = client.consume_once("jobs", ask(16, 1_000)).await.unwrap();
            for one in &got {
                let wanted = format!("{next:010}");
                assert!(one.record.value.starts_with(wanted.as_bytes()));
                next += 1;
            }
            let acks = client.settle_once("jobs", &leases(&got), Settle::Ack).await;
            acks.unwrap();
        }

        // Room comes back without a restart.
        let short = TopicSettingsView {
            retention_bytes: 32 * MIB,
            ..TopicSettingsView::default()
        };
        let change = [Setting::RetentionBytes];
        client.alter_topic("jobs", &short, &change).await.unwrap();
        let until = Instant::now() + PATIENCE;
        while let Err(code) = produce_mib(&client, acked).await {
            assert_eq!(code, Some(ErrorCode::DiskFull));
            assert!(Instant::now() < until, "retention makes no room");
            glommio::timer::sleep(Duration::from_millis(200)).await;
        }
    });
    cluster.nodes[0].stop();
    drop(mount);
}

#[test]
fn records_go_elsewhere_while_a_partition_that_an_error_has_stopped_is_recovered() {
    // SAFETY: only the disposition of a signal that nothing here uses; the node inherits it, so that a
    // refused write is an error to it and not its end.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.expect("it can be ignored");
    let (mut cluster, addrs) = one_node("disk-stopped", &[]);
    let pid = cluster.nodes[0].pid();
    with_client(addrs, async move |client| {
        topic(&client, "jobs", 4, TopicSettingsView::default()).await;
        // Beyond the limit lies what partition 0 will be given, and nothing else that is written.
        for n in 0..8 {
            produce_mib(&client, n * 16).await.unwrap();
        }
        limit_files(pid, &(6 * MIB).to_string());
        assert_eq!(
            produce_mib(&client, 1_000).await,
            Err(Some(ErrorCode::Closed))
        );
        limit_files(pid, "unlimited");
        // Their keys lead them to all partitions, the stopped one among them.
        let keyed: Vec<Record> = (0..64)
            .map(|n| Record {
                key: Some(format!("key {n}").into_bytes()),
                ..Record::new(b"keyed".to_vec())
            })
            .collect();
        let placed = client.produce_once("jobs", &keyed, None).await.unwrap();
        for one in placed {
            one.expect("the next place takes it");
        }
    });
    let recovered = || cluster.nodes[0].log().contains("a stopped log is closed");
    wait_for("it is recovered without a restart", || {
        recovered().then_some(())
    });
    assert!(cluster.nodes[0].runs());
}
