//! A node with data whose addresses lead to another cluster: it is refused there, and keeps what it has.

use crate::support::{Cluster, wait_for};
use crate::{ok, produce_everywhere, wait_consumed};

#[test]
fn a_node_that_is_joined_to_another_cluster_by_its_address_is_refused_and_keeps_its_data() {
    let mut own = Cluster::founders("strangers-own", 1, &[]);
    let mut other = Cluster::founders("strangers-other", 1, &[]);
    own.start_all();
    other.start_all();
    own.wait_ready();
    other.wait_ready();
    let server = own.nodes[0].addr();
    own.add("n2", &[&format!("--join={server}")]);
    own.node("n2").start();
    own.node("n2").wait_ready();
    ok(&server, &["topic", "create", "t", "--partitions", "4"]);
    let lines = produce_everywhere(&server, "t", 4, 50);
    own.nodes.iter_mut().for_each(|node| node.kill());

    // Its own cluster is down, and the address is the other's.
    let wrong = other.nodes[0].addr();
    own.node("n2").set("--join", &wrong);
    own.node("n2").start();
    wait_for("it is told", || {
        let log = own.node("n2").log();
        log.contains("an address leads to another cluster")
            .then_some(())
    });
    let log = own.node("n2").log();
    assert!(log.contains("it belongs to cluster"), "{log}");
    assert!(other.nodes[0].member("n2").is_none());
    assert_eq!(own.node("n2").http("GET", "/readyz").unwrap().0, 503);
    own.node("n2").kill();

    // Without its metadata it is still the other's data, and the node ends.
    let raft = own.node("n2").dir.join("raft");
    let aside = own.node("n2").dir.join("raft-aside");
    std::fs::rename(&raft, &aside).unwrap();
    own.node("n2").start();
    assert!(!own.node("n2").wait_end().success());
    let log = own.node("n2").log();
    assert!(log.contains("n2 does not join this cluster"), "{log}");
    assert!(other.nodes[0].member("n2").is_none());
    let _ = std::fs::remove_dir_all(&raft);
    std::fs::rename(&aside, &raft).unwrap();

    // The wrong address does no harm once its own cluster is there again.
    own.nodes.iter_mut().for_each(|node| node.start());
    own.wait_ready();
    wait_consumed(&server, "t", &lines);
}
