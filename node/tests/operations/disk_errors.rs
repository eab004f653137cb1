//! A disk that refuses writes for a while: the ingress WAL stops, says so, and is opened again while
//! the node runs.

use crate::support::{Cluster, limit_files, wait_for};
use crate::{ok, producing, text, wait_consumed};
use nix::sys::signal::{SigHandler, Signal, signal};

/// Writes beyond this offset of any file fail with EFBIG while it is set. Above the segments of the
/// metadata log, below those of an ingress WAL.
const LIMIT_BYTES: u64 = 6 << 20;

#[test]
fn an_ingress_wal_that_an_error_has_stopped_is_open_again_without_a_restart() {
    // SAFETY: only the disposition of a signal that nothing here uses; the nodes inherit it, so that a
    // refused write is an error to them and not their end.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.expect("it can be ignored");
    let mut cluster = Cluster::founders("wal-reopened", 3, &[]);
    cluster.start_all();
    cluster.wait_ready();
    let leader = cluster.leader();
    let servers: Vec<String> = cluster.nodes.iter().map(|node| node.addr()).collect();
    let at = |id: &str| id[1..].parse::<usize>().unwrap() - 1;
    ok(&servers[0], &["topic", "create", "t", "--partitions", "3"]);
    let view = cluster.nodes[0].get("/v1/topics/t").unwrap();
    let owner_of = |partition: usize| view["partitions"][partition]["owner"].as_str().unwrap();
    // The partition of some follower, whose records go into the WAL of another node.
    let partition = (0..3).find(|p| owner_of(*p) != leader).unwrap();
    let owner = owner_of(partition).to_owned();
    let through = (0..3)
        .find(|n| *n != at(&owner) && *n != at(&leader))
        .unwrap();
    let server = servers[through].clone();
    cluster.node(&owner).kill();

    limit_files(cluster.nodes[through].pid(), &LIMIT_BYTES.to_string());
    let lines: Vec<String> = (0..9_000)
        .map(|n| format!("{n:06}-{}", "x".repeat(1_017)))
        .collect();
    let partition = partition.to_string();
    let args = ["produce", "t", "--partition", &partition];
    let child = producing(&server, &args, &lines);
    wait_for("the WAL has stopped", || {
        let log = cluster.nodes[through].log();
        log.contains("an ingress WAL has stopped").then_some(())
    });
    limit_files(cluster.nodes[through].pid(), "unlimited");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output));
    assert!(cluster.nodes[through].runs(), "the node was not restarted");
    let log = cluster.nodes[through].log();
    assert!(log.contains("the ingress WAL is open again"), "{log}");

    cluster.node(&owner).start();
    cluster.node(&owner).wait_ready();
    wait_consumed(&server, "t", &lines);
}
