//! What partitions cost that do nothing: no open file, a few KiB of disk, one short read at a start.
//!
//! `NARAD_IDLE_PARTITIONS=10000 cargo test --release -p narad --test idle_partitions -- --nocapture` prints
//! the figures of node/docs/idle-partitions.md.

#[path = "support/client.rs"]
mod client;
mod support;

use client::{one_node, topic, with_client};
use futures::StreamExt as _;
use narad_core::ids::PartitionIndex;
use narad_wire::client::TopicSettingsView;
use narad_wire::convert::Record;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};
use support::{Node, wait_for};

/// First appends that are under way at once.
const AT_ONCE: usize = 64;

fn partitions() -> u32 {
    let set = std::env::var("NARAD_IDLE_PARTITIONS").ok();
    set.and_then(|n| n.parse().ok()).unwrap_or(150)
}

/// One record into each of these partitions, as its first or a later one.
fn one_record_each(addrs: Vec<String>, count: u32) {
    with_client(addrs, async move |client| {
        let client = &client;
        let mut appends = futures::stream::iter(0..count)
            .map(|partition| async move {
                let one = [Record::new(vec![b'.'; 1024])];
                let to = Some(PartitionIndex(partition));
                let placed = client.produce_once("idle", &one, to).await;
                placed.expect("it is taken").iter().all(Result::is_ok)
            })
            .buffer_unordered(AT_ONCE);
        while let Some(taken) = appends.next().await {
            assert!(taken);
        }
    });
}

fn number(text: &str, name: &str) -> u64 {
    let line = text
        .lines()
        .find(|line| line.split([' ', ':']).next() == Some(name));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    value.map_or(0, |value| value.parse().expect("a number"))
}

fn proc_number(node: &Node, file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/{file}", node.pid()));
    number(&text.expect("the process is ours"), name)
}

fn metric(node: &Node, name: &str) -> u64 {
    let text = node
        .http("GET", "/metrics")
        .map_or_else(String::new, |(_, text)| text);
    number(&text, name)
}

fn cpu_ticks(node: &Node) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.pid())).expect("ours");
    let behind = stat.rsplit(')').next().expect("a name is in front");
    let mut words = behind.split_whitespace().skip(11);
    let mut tick = || {
        words
            .next()
            .and_then(|w| w.parse::<u64>().ok())
            .expect("a number")
    };
    tick() + tick()
}

/// Open files of the node, and those of them below its partitions.
fn open_files(node: &Node) -> (usize, usize) {
    let below = node.dir.join("partitions");
    let fds = std::fs::read_dir(format!("/proc/{}/fd", node.pid())).expect("ours");
    let paths: Vec<_> = fds
        .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .collect();
    let of_partitions = paths.iter().filter(|path| path.starts_with(&below));
    (paths.len(), of_partitions.count())
}

/// Bytes that a directory takes on the disk, with everything in it.
fn disk_bytes(dir: &Path) -> u64 {
    let own = std::fs::symlink_metadata(dir).map_or(0, |m| m.blocks() * 512);
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    own + entries
        .map(|entry| match entry.file_type().is_ok_and(|t| t.is_dir()) {
            true => disk_bytes(&entry.path()),
            false => entry.metadata().map_or(0, |m| m.blocks() * 512),
        })
        .sum::<u64>()
}

/// Bytes of segments that were read to open logs since the log file was so long.
fn read_to_open(log: &str) -> (usize, u64) {
    let opened: Vec<u64> = log
        .lines()
        .filter(|line| line.contains("log opened"))
        .filter_map(|line| line.split("bytes_read: ").nth(1))
        .filter_map(|rest| rest.split([',', ' ']).next()?.parse().ok())
        .collect();
    (opened.len(), opened.iter().sum())
}

#[test]
fn partitions_that_do_nothing_cost_no_open_file_and_one_short_read_at_a_start() {
    let count = partitions();
    let (mut cluster, addrs) = one_node("idle-partitions", &[]);
    let made = Instant::now();
    with_client(addrs.clone(), async move |client| {
        topic(&client, "idle", count, TopicSettingsView::default()).await;
    });
    let node = &cluster.nodes[0];
    let kib = |node: &Node| proc_number(node, "status", "VmRSS");
    let below = node.dir.join("partitions");
    println!(
        "{count} partitions made in {:?}; {} KiB resident",
        made.elapsed(),
        kib(node)
    );
    assert_eq!((disk_bytes(&below), open_files(node).1), (0, 0));

    let began = Instant::now();
    one_record_each(addrs.clone(), count);
    let took = began.elapsed();
    let rate = f64::from(count) / took.as_secs_f64();
    println!("a first record in each: {took:?}, {rate:.0}/s");
    let began = Instant::now();
    one_record_each(addrs.clone(), count);
    println!("a second record in each: {:?}", began.elapsed());
    let all = u64::from(count);
    assert_eq!(metric(node, "narad_open_partitions"), all);

    wait_for("no partition has an open file", || {
        (open_files(node).1 == 0).then_some(())
    });
    let disk = disk_bytes(&below);
    // A directory, a segment of two records, a meta file, perhaps a list: a page or two each.
    assert!(disk / all <= 24 << 10, "{disk} bytes of disk for {count}");
    let ticks = cpu_ticks(node);
    std::thread::sleep(Duration::from_secs(if count > 1000 { 60 } else { 1 }));
    println!(
        "idle: {} KiB resident, {} open files, {disk} bytes of disk, {} ticks of processor",
        kib(node),
        open_files(node).0,
        cpu_ticks(node) - ticks
    );

    for (how, orderly) in [("an orderly stop", true), ("a kill", false)] {
        let node = &mut cluster.nodes[0];
        match orderly {
            true => assert!(node.stop().success()),
            false => node.kill(),
        }
        let said = node.log().len();
        let began = Instant::now();
        node.start();
        node.wait_ready();
        let ready = began.elapsed();
        let node = &cluster.nodes[0];
        wait_for("all logs are open", || {
            (metric(node, "narad_open_partitions") == all).then_some(())
        });
        let (opened, bytes) = read_to_open(&node.log()[said..]);
        println!(
            "after {how}: ready in {ready:?}, all open in {:?}, {bytes} bytes of segments read, {} KiB resident, \
             {} bytes read from the disk",
            began.elapsed(),
            kib(node),
            proc_number(node, "io", "read_bytes")
        );
        assert_eq!(opened as u64, all);
        assert!(bytes <= all * (8 << 10), "{bytes} bytes to open {count}");
    }
    // They are all there, and take records.
    one_record_each(addrs, count);
}

/// Every partition has something to do, and the process may open fewer files than they have.
#[test]
fn more_busy_partitions_than_open_files() {
    let (count, most) = (500, 800);
    let (mut cluster, addrs) = one_node("many-files", &[]);
    let node = &mut cluster.nodes[0];
    assert!(node.stop().success());
    node.starter = vec!["prlimit".into(), format!("--nofile={most}:{most}")];
    node.start();
    node.wait_ready();
    with_client(addrs.clone(), async move |client| {
        topic(&client, "idle", count, TopicSettingsView::default()).await;
    });
    for _ in 0..3 {
        one_record_each(addrs.clone(), count);
    }
    let node = &mut cluster.nodes[0];
    assert!(open_files(node).0 <= most);
    assert_eq!(metric(node, "narad_open_partitions"), u64::from(count));
    let log = node.log();
    assert!(!log.contains("Too many open files") && !log.contains("log stopped"));
    assert!(node.stop().success());
}
