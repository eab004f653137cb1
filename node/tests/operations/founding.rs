//! Founders whose disks were lost, wholly or in part: nobody founds a second cluster.

use crate::support::{Cluster, wait_for};

/// What a node has logged since its log was `since` bytes long.
fn news(cluster: &mut Cluster, id: &str, since: usize) -> String {
    cluster.node(id).log().split_off(since)
}

fn three(name: &str) -> Cluster {
    let mut cluster = Cluster::founders(name, 3, &[]);
    cluster.start_all();
    cluster.wait_ready();
    cluster.leader();
    cluster.nodes.iter_mut().for_each(|node| node.kill());
    cluster
}

#[test]
fn two_of_three_founders_with_empty_disks_refuse_to_found_beside_the_third() {
    let mut cluster = three("two-wiped");
    let mut since = Vec::new();
    for node in &mut cluster.nodes {
        since.push(node.log().len());
        if node.id != "n3" {
            std::fs::remove_dir_all(&node.dir).unwrap();
        }
        node.start();
    }
    for (at, id) in ["n1", "n2"].into_iter().enumerate() {
        assert!(!cluster.node(id).wait_end().success());
        let log = news(&mut cluster, id, since[at]);
        for part in [
            "2 of the 3 voters",
            "n1, n2",
            "n3 has the metadata",
            "old --data-dir",
        ] {
            assert!(log.contains(part), "{part} is missing:\n{log}");
        }
        assert!(!log.contains("founding the cluster"), "{log}");
    }
    // What is left of the cluster still knows itself and waits.
    assert!(cluster.node("n3").runs());
    assert_eq!(cluster.node("n3").http("GET", "/readyz").unwrap().0, 503);
    let member = cluster.node("n3").member("n1");
    assert!(member.is_some(), "the metadata is still there");
}

#[test]
fn a_vote_without_a_log_keeps_everybody_from_founding() {
    let mut cluster = three("vote-left");
    let mut since = Vec::new();
    for node in &mut cluster.nodes {
        since.push(node.log().len());
        if node.id != "n1" {
            std::fs::remove_dir_all(&node.dir).unwrap();
            continue;
        }
        for item in std::fs::read_dir(node.dir.join("raft")).unwrap() {
            let path = item.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name != "vote" && name != "identity" {
                std::fs::remove_file(&path).unwrap();
            }
        }
    }
    cluster.start_all();
    for (at, id) in ["n1", "n2", "n3"].into_iter().enumerate() {
        wait_for("the trace is told", || {
            let log = news(&mut cluster, id, since[at]);
            assert!(!log.contains("founding the cluster"), "{log}");
            log.contains("n1 has voted in some cluster").then_some(())
        });
        assert_eq!(cluster.node(id).http("GET", "/readyz").unwrap().0, 503);
    }
}
