//! Drains at awkward moments: of a node that is dead, of one while another joins, of two at once.

use crate::support::{Cluster, wait_for};
use crate::{fails, ok, produce_everywhere, wait_consumed, wait_dead};

#[test]
fn a_dead_node_says_what_holds_it_and_leaves_when_it_is_back() {
    let mut cluster = Cluster::founders("dead-drain", 4, &[]);
    cluster.start_all();
    cluster.wait_ready();
    let leader = cluster.leader();
    let dead = if leader == "n4" { "n3" } else { "n4" };
    let at = (0..4).find(|n| cluster.nodes[*n].id != dead).unwrap();
    let server = cluster.nodes[at].addr();
    ok(&server, &["topic", "create", "t", "--partitions", "8"]);
    let lines = produce_everywhere(&server, "t", 8, 40);
    cluster.node(dead).kill();
    wait_dead(&mut cluster, at, dead);
    let told = fails(&server, &["cluster", "decommission", dead, "--wait"]);
    for part in ["dead", "owns 2 partitions", "start"] {
        assert!(told.contains(part), "{part} is missing:\n{told}");
    }
    assert_eq!(cluster.nodes[at].member(dead).unwrap()["draining"], true);
    cluster.node(dead).start();
    let told = ok(&server, &["cluster", "decommission", dead, "--wait"]);
    assert!(told.contains("is out of the cluster"), "{told}");
    assert!(cluster.node(dead).wait_end().success());
    // Once more: it is out, which is all that was asked.
    let again = ok(&server, &["cluster", "decommission", dead, "--wait"]);
    assert!(again.contains("is out of the cluster"), "{again}");
    let refused = fails(&server, &["cluster", "decommission", dead]);
    assert!(
        refused.contains("has left the cluster already"),
        "{refused}"
    );
    wait_consumed(&server, "t", &lines);
    // Without a majority nobody is told of the disks, and no plan is made up of nothing.
    let alone = cluster.nodes[at].id.clone();
    let others = cluster.nodes.iter_mut().filter(|node| node.id != alone);
    others
        .filter_map(|node| node.runs().then_some(node))
        .for_each(|node| node.kill());
    wait_for("no plan without a leader", || {
        let (status, body) = cluster.nodes[at].http("GET", "/v1/cluster/plan")?;
        (status == 503 && body.contains("no leader can be asked")).then_some(())
    });
}

#[test]
fn two_drains_while_two_nodes_join_end_with_the_planned_ownership() {
    let mut cluster = Cluster::founders("drain-join", 3, &[]);
    cluster.start_all();
    cluster.wait_ready();
    let leader = cluster.leader();
    let server = cluster.node(&leader).addr();
    ok(&server, &["topic", "create", "t", "--partitions", "9"]);
    let lines = produce_everywhere(&server, "t", 9, 40);
    let join = format!("--join={server}");
    for id in ["n4", "n5"] {
        let at = cluster.add(id, &[&join]);
        cluster.nodes[at].start();
    }
    let leave: Vec<&str> = ["n1", "n2", "n3"]
        .into_iter()
        .filter(|id| *id != leader)
        .collect();
    // Set before the joins are through; each is held until enough voters stay.
    for id in &leave {
        ok(&server, &["cluster", "decommission", id]);
    }
    for id in &leave {
        let told = ok(&server, &["cluster", "decommission", id, "--wait"]);
        assert!(told.contains("is out of the cluster"), "{told}");
        assert!(cluster.node(id).wait_end().success());
    }
    wait_for("the rest own three each", || {
        let view = cluster.node(&leader).get("/v1/cluster/members")?;
        let members = view["members"].as_array()?;
        let even = members.iter().all(|m| m["owned"] == 3);
        (members.len() == 3 && even).then_some(())
    });
    wait_consumed(&server, "t", &lines);
}

#[test]
fn of_two_drains_one_is_cancelled_and_the_other_ends() {
    // One after the other, so that the cancel comes in the middle.
    let mut cluster = Cluster::founders("drain-two", 5, &[]);
    for node in &mut cluster.nodes {
        for limit in ["--max-in-flight-moves", "--max-moves-in", "--max-moves-out"] {
            node.set(limit, "1");
        }
    }
    cluster.start_all();
    cluster.wait_ready();
    let leader = cluster.leader();
    let server = cluster.node(&leader).addr();
    ok(&server, &["topic", "create", "t", "--partitions", "40"]);
    let lines = produce_everywhere(&server, "t", 40, 10);
    let mut others = cluster.nodes.iter().map(|node| node.id.clone());
    let goes = others.find(|id| *id != leader).expect("five nodes");
    let stays = others.find(|id| *id != leader).expect("five nodes");
    for id in [&goes, &stays] {
        ok(&server, &["cluster", "decommission", id]);
    }
    wait_for("the first has moved", || {
        let owned = |id: &str| cluster.nodes[0].member(id)?["owned"].as_u64();
        (owned(&stays)? + owned(&goes)? < 16).then_some(())
    });
    ok(&server, &["cluster", "decommission", &stays, "--cancel"]);
    let told = ok(&server, &["cluster", "decommission", &goes, "--wait"]);
    assert!(told.contains("is out of the cluster"), "{told}");
    assert!(cluster.node(&goes).wait_end().success());
    wait_for("the rest own ten each", || {
        let view = cluster.node(&leader).get("/v1/cluster/members")?;
        let members = view["members"].as_array()?;
        let even = members
            .iter()
            .all(|m| m["owned"] == 10 && m["draining"] == false && m["inbound"] == 0);
        (members.len() == 4 && even).then_some(())
    });
    wait_consumed(&server, "t", &lines);
}
