//! Metadata that is longer than Raft's log: snapshots on real nodes.
//!
//! What this file keeps true: a node that joins when the beginning of the log is gone gets a snapshot; all
//! nodes show the same afterwards, also after a restart, and their logs stay short.

use crate::support::{Cluster, wait_for};
use crate::{numbered, ok, produce, wait_consumed};

const SNAPSHOT: &str = "the metadata came as a snapshot";

#[test]
fn a_joiner_gets_a_snapshot_when_the_log_does_not_begin_at_the_beginning() {
    let every = ["--snapshot-entries=32"];
    let mut cluster = Cluster::founders("snapshots", 3, &every);
    cluster.start_all();
    cluster.wait_ready();
    let server = cluster.nodes[0].addr();
    ok(&server, &["topic", "create", "t", "--partitions", "8"]);
    let lines = numbered("line", 200);
    produce(&server, "t", &lines);
    for n in 0..40 {
        let name = format!("made-{n}");
        ok(&server, &["topic", "create", &name, "--partitions", "1"]);
        if n % 2 == 0 {
            ok(&server, &["topic", "delete", &name]);
        }
    }

    let join = format!("--join={server}");
    let at = cluster.add("n4", &[every[0], &join]);
    cluster.nodes[at].start();
    cluster.nodes[at].wait_ready();
    assert!(cluster.nodes[at].log().contains(SNAPSHOT));
    let topics = |cluster: &Cluster, at: usize| {
        let list = cluster.nodes[at].get("/v1/topics").expect("topics");
        let list = list["topics"].as_array().expect("a list").clone();
        let names = list.iter().map(|one| one["name"].to_string());
        names.collect::<Vec<_>>()
    };
    let all = topics(&cluster, 0);
    assert_eq!(all.len(), 21, "{all:?}");
    assert_eq!(topics(&cluster, at), all);
    // It has its share, and nothing was lost on the way.
    wait_for("it owns something", || {
        let member = cluster.nodes[0].member("n4")?;
        (member["owned"].as_u64()? > 0 && member["inbound"] == 0).then_some(())
    });

    // Every node begins from its own snapshot again.
    for node in &mut cluster.nodes {
        assert!(node.stop().success(), "{}", node.id);
        node.start();
        node.wait_ready();
    }
    for at in 0..cluster.nodes.len() {
        assert_eq!(topics(&cluster, at), all, "{}", cluster.nodes[at].id);
    }
    let server = cluster.nodes[at].addr();
    wait_consumed(&server, "t", &lines);
}
