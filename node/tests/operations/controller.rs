//! The controller acts on events: with its tick out of reach everything happens all the same.

use crate::support::{Cluster, wait_for};
use crate::{numbered, ok, produce, wait_consumed};

/// Passes that only a tick brought about, over all nodes that run.
fn ticks(cluster: &mut Cluster) -> u64 {
    let mut sum = 0;
    for node in &mut cluster.nodes {
        if !node.runs() {
            continue;
        }
        let (_, metrics) = node.http("GET", "/metrics").expect("it answers");
        let line = metrics
            .lines()
            .find(|line| line.starts_with("narad_controller_ticks_total"))
            .expect("the counter is there");
        sum += line.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
    }
    sum
}

fn owned(cluster: &Cluster) -> Option<Vec<u64>> {
    let view = cluster.nodes[0].get("/v1/cluster/members")?;
    let members = view["members"].as_array()?;
    members.iter().map(|m| m["owned"].as_u64()).collect()
}

#[test]
fn a_join_a_pause_and_a_drain_need_no_tick() {
    let mut cluster = Cluster::founders("no-ticks", 3, &[]);
    for node in &mut cluster.nodes {
        node.set("--planner-tick-ms", "86400000");
        // One move at a time: the next begins because the one before has ended.
        node.set("--max-in-flight-moves", "1");
        node.set("--max-moves-in", "1");
        node.set("--max-moves-out", "1");
    }
    cluster.start_all();
    cluster.wait_ready();
    let server = cluster.nodes[0].addr();
    ok(&server, &["topic", "create", "t", "--partitions", "12"]);
    let lines = numbered("tickless", 600);
    produce(&server, "t", &lines);

    let told = ok(&server, &["cluster", "pause"]);
    assert!(told.contains("resume"), "{told}");
    let join = format!("--join={server}");
    let fourth = cluster.add("n4", &[&join]);
    cluster.nodes[fourth].set("--planner-tick-ms", "86400000");
    cluster.nodes[fourth].start();
    cluster.nodes[fourth].wait_ready();
    // It votes although nothing else has changed since it caught up.
    wait_for("it votes", || {
        (cluster.nodes[0].member("n4")?["role"] == "voter").then_some(())
    });
    let plan = ok(&server, &["cluster", "plan"]);
    assert!(plan.contains("rebalancing is paused"), "{plan}");
    assert_eq!(cluster.nodes[0].member("n4").unwrap()["owned"], 0);
    let (status, body) = cluster.nodes[1]
        .http("DELETE", "/v1/cluster/pause")
        .unwrap();
    assert_eq!((status, body.contains("false")), (200, true), "{body}");
    wait_for("all own three", || {
        (owned(&cluster)? == [3, 3, 3, 3]).then_some(())
    });
    assert_eq!(ticks(&mut cluster), 0);

    let told = ok(&server, &["cluster", "decommission", "n4", "--wait"]);
    assert!(told.contains("out of the cluster"), "{told}");
    assert!(cluster.nodes[fourth].wait_end().success());
    assert_eq!(ticks(&mut cluster), 0);

    // One that joins while moves may start: whatever told of it starts the first of them.
    let fifth = cluster.add("n5", &[&join]);
    for (flag, value) in [
        ("--planner-tick-ms", "86400000"),
        ("--max-in-flight-moves", "1"),
        ("--max-moves-in", "1"),
        ("--max-moves-out", "1"),
    ] {
        cluster.nodes[fifth].set(flag, value);
    }
    cluster.nodes[fifth].start();
    cluster.nodes[fifth].wait_ready();
    wait_for("it owns its share", || {
        (owned(&cluster)? == [3, 3, 3, 3]).then_some(())
    });
    assert_eq!(ticks(&mut cluster), 0);
    wait_consumed(&server, "t", &lines);
    let history = ok(&server, &["cluster", "moves", "--history"]);
    assert!(
        history.contains("takeover") && history.contains("flipped"),
        "{history}"
    );
}

#[test]
fn the_limit_on_copies_is_adaptive_until_an_operator_says_otherwise() {
    let mut cluster = Cluster::founders("throttle", 1, &["--min-voters=1"]);
    cluster.start_all();
    cluster.wait_ready();
    let server = cluster.nodes[0].addr();
    let told = |args: &[&str]| ok(&server, &[&["cluster", "throttle"], args].concat());
    assert!(told(&[]).contains("adaptive"));
    assert!(told(&["20MiB/s"]).contains("20.0 MiB/s"));
    wait_for("it is in force", || {
        let (_, metrics) = cluster.nodes[0].http("GET", "/metrics")?;
        metrics
            .contains("narad_copy_limit_bytes_per_second 20971520")
            .then_some(())
    });
    assert!(told(&["unlimited"]).contains("not limited"));
    assert!(told(&[]).contains("not limited"));
    let json: serde_json::Value = serde_json::from_str(&told(&["adaptive", "--json"])).unwrap();
    assert_eq!(
        (json["adaptive"].as_bool(), json["bytes_per_s"].as_u64()),
        (Some(true), Some(0))
    );
}
