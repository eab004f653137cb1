//! The worst day: a node that never comes back, and one that does after all; a quorum that is lost.

use crate::support::{Cluster, wait_for};
use crate::{fails, narad, numbered, ok, produce, produce_everywhere, wait_consumed, wait_dead};
use nix::sys::signal::Signal;

fn founders(name: &str, count: usize) -> (Cluster, String) {
    let mut cluster = Cluster::founders(name, count, &[]);
    cluster.start_all();
    cluster.wait_ready();
    cluster.leader();
    let server = cluster.nodes[0].addr();
    (cluster, server)
}

/// Waits until living nodes own every partition of the topic and serve it.
fn wait_served(cluster: &Cluster, at: usize, topic: &str, count: usize) {
    wait_for("every partition is served", || {
        let view = cluster.nodes[at].get(&format!("/v1/topics/{topic}"))?;
        let parts = view["partitions"].as_array()?;
        let known = parts.iter().filter(|p| p["known"] == true).count();
        (parts.len() == count && known == count).then_some(())
    });
}

#[test]
fn a_dead_node_is_given_up_and_hands_over_what_it_has_when_it_comes_back() {
    let (mut cluster, server) = founders("forget", 3);
    ok(&server, &["topic", "create", "t", "--partitions", "6"]);
    let early = produce_everywhere(&server, "t", 6, 150);
    // A living node is not given up.
    let refused = fails(&server, &["cluster", "forget", "n3", "--accept-loss"]);
    assert!(refused.contains("not in the state"), "{refused}");
    cluster.node("n3").kill();
    wait_dead(&mut cluster, 0, "n3");

    // Nor is the disk of one that is a member still handed over: it may be another cluster's.
    let dir = cluster.node("n3").dir.display().to_string();
    let refused = fails(&server, &["salvage", &dir]);
    assert!(refused.contains("has not removed node n3"), "{refused}");

    let shown = ok(&server, &["cluster", "forget", "n3"]);
    for part in [
        "2 partitions",
        "t/",
        "nothing was changed",
        "--accept-loss --deaths 1",
    ] {
        assert!(shown.contains(part), "{part} is missing:\n{shown}");
    }
    let other = ["cluster", "forget", "n3", "--accept-loss", "--deaths", "9"];
    let refused = fails(&server, &other);
    assert!(refused.contains("since its loss was listed"), "{refused}");
    assert_eq!(cluster.nodes[0].member("n3").unwrap()["owned"], 2);
    let path = "/v1/cluster/members/n3/forget";
    let (status, body) = cluster.nodes[1].http("POST", path).unwrap();
    assert_eq!(status, 400, "{body}");
    let loss = cluster.nodes[1].get(path).unwrap();
    assert_eq!(loss["partitions"].as_array().unwrap().len(), 2);

    let done = ok(&server, &["cluster", "forget", "n3", "--accept-loss"]);
    assert!(done.contains("n3 is given up"), "{done}");
    assert!(cluster.nodes[0].member("n3").is_none());
    // Nobody takes that for a drain that has ended, and empties the disk.
    let refused = fails(&server, &["cluster", "decommission", "n3", "--wait"]);
    assert!(refused.contains("somebody gave it up"), "{refused}");
    let refused = fails(&server, &["cluster", "decommission", "n9", "--wait"]);
    assert!(refused.contains("there is no member n9"), "{refused}");
    let view = cluster.nodes[0].get("/v1/topics/t").unwrap();
    let owners = view["partitions"].as_array().unwrap();
    assert!(owners.iter().all(|p| p["owner"] != "n3"), "{view}");
    let late = numbered("late", 300);
    produce(&server, "t", &late);
    wait_served(&cluster, 0, "t", 6);

    // It comes back, is told, hands over what only it has, and ends in order.
    cluster.node("n3").start();
    let ended = cluster.node("n3").wait_end();
    let log = cluster.node("n3").log();
    assert!(ended.success(), "{log}");
    assert!(log.contains("was given up while it was away"), "{log}");
    assert!(log.contains("were handed to the cluster"), "{log}");
    wait_consumed(&server, "t", &[early, late].concat());

    // Once more: there is nothing left to hand over.
    let since = log.len();
    cluster.node("n3").start();
    assert!(cluster.node("n3").wait_end().success());
    let again = cluster.node("n3").log().split_off(since);
    assert!(!again.contains("were handed to the cluster"), "{again}");
    let told = ok(&server, &["salvage", &dir]);
    assert!(told.starts_with("0 records"), "{told}");
}

#[test]
fn a_survivor_becomes_the_only_voter_and_the_lost_ones_are_given_up() {
    let (mut cluster, _) = founders("quorum", 4);
    let server = cluster.nodes[2].addr();
    ok(&server, &["topic", "create", "t", "--partitions", "8"]);
    let lines = produce_everywhere(&server, "t", 8, 50);
    let view = cluster.nodes[2].get("/v1/topics/t").unwrap();
    let kept = view["partitions"].as_array().unwrap();
    let kept = kept.iter().filter(|p| p["owner"] == "n3").count();
    assert_eq!(kept, 2);
    for id in ["n1", "n2"] {
        let node = cluster.node(id);
        node.kill();
        std::fs::remove_dir_all(&node.dir).unwrap();
    }
    let dir = cluster.node("n3").dir.display().to_string();
    let running = fails(&server, &["recover-quorum", &dir]);
    assert!(
        running.contains("in use by another narad process"),
        "{running}"
    );
    cluster.node("n3").kill();
    cluster.node("n4").kill();
    let looked = ok(&server, &["recover-quorum", &dir]);
    assert!(looked.contains("voters n1, n2, n3, n4") && looked.contains("nothing was changed"));
    let again = ok(&server, &["recover-quorum", &dir]);
    assert_eq!(looked, again, "looking changes nothing");
    let done = ok(&server, &["recover-quorum", &dir, "--accept-loss"]);
    assert!(done.contains("n3 is the only voter now"), "{done}");
    let refused = fails(&server, &["recover-quorum", &dir, "--accept-loss"]);
    assert!(refused.contains("only voter already"), "{refused}");

    cluster.node("n3").start();
    cluster.node("n3").wait_ready();
    // The other survivor is admitted again.
    cluster.node("n4").start();
    cluster.node("n4").wait_ready();
    wait_for("it votes again", || {
        (cluster.nodes[2].member("n4")?["role"] == "voter").then_some(())
    });
    for id in ["n1", "n2"] {
        wait_dead(&mut cluster, 2, id);
        let shown = ok(&server, &["cluster", "forget", id]);
        assert!(shown.contains("2 partitions, size not known"), "{shown}");
        ok(&server, &["cluster", "forget", id, "--accept-loss"]);
    }
    wait_served(&cluster, 2, "t", 8);
    let more = numbered("more", 100);
    produce(&server, "t", &more);
    wait_consumed(&server, "t", &more);
    // A new node joins as ever.
    let join = format!("--join={server}");
    let fifth = cluster.add("n5", &[&join]);
    cluster.nodes[fifth].start();
    cluster.nodes[fifth].wait_ready();
    wait_for("it votes", || {
        (cluster.nodes[2].member("n5")?["role"] == "voter").then_some(())
    });
    // What only the survivors' disks held is all there.
    let mut seen = 0;
    for partition in 0..8 {
        let partition = partition.to_string();
        let args = ["replay", "t", "--partition", &partition, "--from", "0"];
        let output = narad(&server, &args).output().expect("narad runs");
        let shown = String::from_utf8_lossy(&output.stdout);
        seen += shown.lines().filter(|line| line.starts_with("t-")).count();
    }
    // More where its ingress WAL had not noted yet what was delivered to the lost ones.
    assert!(seen >= lines.len() / 3, "{seen} of {}", lines.len());
}

/// Adds n4, which gets partitions, and gives it records; these.
fn one_that_joins_late(cluster: &mut Cluster, leader: &str) -> Vec<String> {
    let join = format!("--join={}", cluster.node(leader).addr());
    let late = cluster.add("n4", &[&join]);
    cluster.nodes[late].start();
    cluster.nodes[late].wait_ready();
    wait_for("it serves", || {
        let view = cluster.nodes[late].get("/v1/topics/kept")?;
        let mut parts = view["partitions"].as_array()?.iter();
        let serves = |p: &serde_json::Value| p["owner"] == "n4" && p["known"] == true;
        parts.any(serves).then_some(())
    });
    let lines = numbered("kept", 30);
    produce(&cluster.nodes[late].addr(), "kept", &lines);
    lines
}

#[test]
fn a_lost_voter_that_knew_more_than_the_chosen_survivor_ends_and_keeps_what_it_has() {
    let (mut cluster, _) = founders("wrong-choice", 3);
    let leader = cluster.leader();
    let ids = ["n1", "n2", "n3"];
    let chosen = ids.into_iter().find(|id| *id != leader).unwrap();
    let knew = cluster.node(&leader).addr();
    ok(&knew, &["topic", "create", "kept", "--partitions", "9"]);
    cluster.node(chosen).signal(Signal::SIGSTOP);
    let kept = one_that_joins_late(&mut cluster, &leader);
    ok(&knew, &["topic", "create", "late", "--partitions", "3"]);
    produce_everywhere(&knew, "late", 3, 20);
    cluster.nodes.iter_mut().for_each(|node| node.kill());

    let dir = cluster.node(chosen).dir.display().to_string();
    ok(&knew, &["recover-quorum", &dir, "--accept-loss"]);
    cluster.node(chosen).start();
    cluster.node(chosen).wait_ready();
    let server = cluster.node(chosen).addr();
    ok(&server, &["topic", "create", "other", "--partitions", "3"]);

    let dir = cluster.node(&leader).dir.display().to_string();
    for id in [leader.as_str(), "n4"] {
        let since = cluster.node(id).log().len();
        cluster.node(id).start();
        assert!(!cluster.node(id).wait_end().success());
        let log = cluster.node(id).log().split_off(since);
        let told = "cannot go on with the cluster's metadata";
        assert!(log.contains(told), "{log}");
    }
    // Given up, its records are those of a topic that nobody knows, and go to no other.
    let at = cluster.nodes.iter().position(|node| node.id == chosen);
    wait_dead(&mut cluster, at.unwrap(), &leader);
    ok(&server, &["cluster", "forget", &leader, "--accept-loss"]);
    let told = ok(&server, &["salvage", &dir]);
    assert!(told.starts_with("0 records"), "{told}");
    assert!(!told.contains(", 0 of deleted topics left"), "{told}");
    assert_eq!(ok(&server, &["consume", "other"]), "");

    // Whoever joined in what is lost is nobody here, and what it acknowledged is not lost with that.
    let refused = fails(&server, &["cluster", "forget", "n4", "--accept-loss"]);
    assert!(refused.contains("there is no member n4"), "{refused}");
    let third = ids.into_iter().find(|id| *id != leader && *id != chosen);
    wait_dead(&mut cluster, at.unwrap(), third.unwrap());
    ok(
        &server,
        &["cluster", "forget", third.unwrap(), "--accept-loss"],
    );
    let dir = cluster.node("n4").dir.display().to_string();
    let told = ok(&server, &["salvage", &dir]);
    assert!(told.starts_with("30 records"), "{told}");
    wait_consumed(&server, "kept", &kept);
    assert!(ok(&server, &["salvage", &dir]).starts_with("0 records"));
}
