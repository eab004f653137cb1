//! A node that has left in order and is started once more: it is told so, touches nothing, and ends.

use crate::support::{Cluster, wait_for};
use crate::{ok, produce_everywhere, wait_consumed};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Every file below a directory, with its length.
fn files(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let entry = entry.expect("an entry");
        let meta = entry.metadata().expect("it is there");
        if meta.is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.insert(entry.path(), meta.len());
        }
    }
    found
}

#[test]
fn a_removed_node_is_told_so_and_does_nothing() {
    let mut cluster = Cluster::founders("removed", 4, &[]);
    cluster.start_all();
    cluster.wait_ready();
    let leader = cluster.leader();
    let gone = if leader == "n4" { "n3" } else { "n4" };
    let server = cluster.node(&leader).addr();
    ok(&server, &["topic", "create", "t", "--partitions", "8"]);
    let lines = produce_everywhere(&server, "t", 8, 50);
    ok(&server, &["cluster", "decommission", gone, "--wait"]);
    assert!(cluster.node(gone).wait_end().success());

    let dir = cluster.node(gone).dir.clone();
    let left = files(&dir);
    let copies = |files: &BTreeMap<PathBuf, u64>| {
        let segments = files.keys().filter(|path| {
            let path = path.strip_prefix(&dir).expect("below it");
            path.starts_with("partitions")
        });
        segments.count()
    };
    assert_eq!(copies(&left), 0, "{left:#?}");
    let told = ok(&server, &["salvage", &dir.display().to_string()]);
    assert!(told.starts_with("0 records"), "{told}");

    let before = cluster.node(&leader).get("/v1/cluster/members").unwrap();
    let topic = cluster.node(&leader).get("/v1/topics/t").unwrap();
    let since = cluster.node(gone).log().len();
    cluster.node(gone).start();
    // It never says that it is ready.
    wait_for("it has ended", || {
        let node = cluster.node(gone);
        if let Some((status, _)) = node.http("GET", "/readyz") {
            assert_eq!(status, 503);
        }
        (!node.runs()).then_some(())
    });
    assert!(!cluster.node(gone).wait_end().success());
    let log = cluster.node(gone).log().split_off(since);
    for part in [
        "was removed from the cluster",
        "cannot come back under this id",
        "new --node-id",
    ] {
        assert!(log.contains(part), "{part} is missing:\n{log}");
    }
    assert_eq!(copies(&files(&dir)), 0);

    // Nobody noticed: no election, no move, no member.
    let after = cluster.node(&leader).get("/v1/cluster/members").unwrap();
    assert_eq!(
        (&after["term"], &after["leader"]),
        (&before["term"], &before["leader"])
    );
    assert_eq!(after["members"].as_array().unwrap().len(), 3);
    let same = cluster.node(&leader).get("/v1/topics/t").unwrap();
    for (one, other) in topic["partitions"].as_array().unwrap().iter().zip(
        same["partitions"]
            .as_array()
            .expect("the topic has partitions"),
    ) {
        assert_eq!(
            (&one["owner"], &one["epoch"]),
            (&other["owner"], &other["epoch"])
        );
    }

    // Nor may it come back under its id on an empty disk.
    std::fs::remove_dir_all(&dir).unwrap();
    let join = format!("--join={server}");
    let again = cluster.add(gone, &[&join]);
    let since = cluster.nodes[again].log().len();
    cluster.nodes[again].start();
    assert!(!cluster.nodes[again].wait_end().success());
    let log = cluster.nodes[again].log().split_off(since);
    assert!(log.contains("was removed from the cluster"), "{log}");
    // Under a new one it may.
    std::fs::remove_dir_all(&dir).unwrap();
    let fresh = cluster.add("n9", &[&join]);
    cluster.nodes[fresh].start();
    cluster.nodes[fresh].wait_ready();
    wait_consumed(&server, "t", &lines);
}
