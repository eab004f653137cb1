//! The command line against real nodes: what it prints, how it fails, how it ends.
//!
//! What this file keeps true: exit codes, hints and JSON fields are an interface; a command that is
//! refused leaves nothing behind.

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use support::{Dir, Node, NodeSpec, fails, founding, free_ports, narad, ok, produce, run, signal};

fn one_node(dir: &Dir) -> (Vec<Node>, String) {
    let nodes = founding(dir, 1);
    let server = nodes[0].spec.addr();
    (nodes, server)
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a JSON line"))
        .collect()
}

fn values(text: &str) -> BTreeSet<&str> {
    text.lines().collect()
}

#[test]
fn wrong_usage_exits_with_2() {
    for args in [
        &["frobnicate"][..],
        &["produce"],
        &["produce", "t", "--key", "k", "--partition", "1"],
        &["topic", "create", "t"],
        &["topic", "create", "t", "--partitions", "0"],
        &["cluster", "move", "orders", "--to", "n2"],
        &["cluster", "throttle", "fast"],
        &[
            "replay",
            "t",
            "--partition",
            "0",
            "--from",
            "5",
            "--to",
            "3",
        ],
    ] {
        let error = fails("127.0.0.1:1", 2, args);
        assert!(!error.is_empty(), "{args:?} says nothing");
    }
}

#[test]
fn a_wrong_address_says_what_to_do() {
    let [port] = free_ports();
    let server = format!("127.0.0.1:{port}");
    let error = fails(&server, 1, &["topic", "list", "--timeout", "5"]);
    assert!(
        error.contains(&server) && error.contains("--server"),
        "{error}"
    );
    let error = fails(
        &server,
        1,
        &["cluster", "members", "--json", "--timeout", "5"],
    );
    let error: Value = serde_json::from_str(error.trim()).expect("a JSON error");
    assert_eq!(error["error"]["code"], "connect");
}

#[test]
fn completions_are_printed_without_a_node() {
    let script = ok("127.0.0.1:1", &["completions", "bash"]);
    assert!(script.contains("decommission"));
}

#[test]
fn topics_live_and_die() {
    let dir = Dir::new("topics");
    let (_nodes, server) = one_node(&dir);
    let error = fails(&server, 1, &["topic", "describe", "orders"]);
    assert!(
        error.contains("orders") && error.contains("hint"),
        "{error}"
    );
    let created = ok(
        &server,
        &["topic", "create", "orders", "--partitions", "3", "--json"],
    );
    let created: Value = serde_json::from_str(&created).expect("JSON");
    assert_eq!(created["partitions"].as_array().map(Vec::len), Some(3));
    assert_eq!(created["partitions"][0]["owner"], "n1");
    let error = fails(
        &server,
        1,
        &["topic", "create", "orders", "--partitions", "5"],
    );
    assert!(error.contains("hint"), "{error}");
    assert!(ok(&server, &["topic", "list"]).contains("orders"));
    assert!(ok(&server, &["topic", "describe", "orders"]).contains("n1"));
    ok(&server, &["topic", "delete", "orders"]);
    assert!(!ok(&server, &["topic", "list"]).contains("orders"));
    fails(&server, 1, &["topic", "delete", "orders"]);
}

#[test]
fn what_is_produced_is_consumed_and_replayed() {
    let dir = Dir::new("records");
    let (_nodes, server) = one_node(&dir);
    let error = fails(
        &server,
        1,
        &["produce", "nowhere", "--count", "1", "--size", "10"],
    );
    assert!(error.contains("nowhere"), "{error}");
    assert!(
        !ok(&server, &["topic", "list"]).contains("nowhere"),
        "nothing is half-created"
    );
    ok(&server, &["topic", "create", "t", "--partitions", "1"]);
    produce(&server, "t", "one\ntwo\n\nfour");
    let expected = BTreeSet::from(["one", "two", "", "four"]);

    let kept = ok(&server, &["consume", "t", "--no-ack"]);
    assert_eq!(values(&kept), expected, "--no-ack prints");
    let taken = ok(&server, &["consume", "t", "--json"]);
    let taken = json_lines(&taken);
    let seen: BTreeSet<&str> = taken
        .iter()
        .map(|line| line["value"].as_str().expect("text"))
        .collect();
    assert_eq!(seen, expected, "and gives back");
    assert!(
        taken
            .iter()
            .all(|line| line["deliveries"].as_u64() >= Some(2)),
        "{taken:?}"
    );
    assert_eq!(
        ok(&server, &["consume", "t"]),
        "",
        "what is acknowledged does not come again"
    );

    let again = ok(&server, &["replay", "t", "--partition", "0", "--from", "0"]);
    assert_eq!(
        again, "one\ntwo\n\nfour\n",
        "a replay has the order of the log"
    );
    let part = ok(
        &server,
        &[
            "replay",
            "t",
            "--partition",
            "0",
            "--from",
            "1",
            "--to",
            "3",
            "--json",
        ],
    );
    let offsets: Vec<u64> = json_lines(&part)
        .iter()
        .filter_map(|line| line["offset"].as_u64())
        .collect();
    assert_eq!(offsets, [1, 2]);
    fails(
        &server,
        1,
        &["replay", "t", "--partition", "9", "--from", "0"],
    );
}

#[test]
fn a_line_that_is_too_long_is_named_and_the_ones_before_are_kept() {
    let dir = Dir::new("long");
    let (_nodes, server) = one_node(&dir);
    ok(&server, &["topic", "create", "t", "--partitions", "1"]);
    let file = dir.path().join("input");
    let mut text = b"short\n".to_vec();
    text.extend(vec![b'x'; 3 << 20]);
    std::fs::write(&file, text).expect("written");
    let file = file.to_str().expect("a path");
    let error = fails(&server, 1, &["produce", "t", "--file", file]);
    assert!(error.contains("line 2"), "{error}");
    assert_eq!(ok(&server, &["consume", "t"]), "short\n");
}

#[test]
fn generated_records_and_keys() {
    let dir = Dir::new("generated");
    let (_nodes, server) = one_node(&dir);
    ok(&server, &["topic", "create", "t", "--partitions", "4"]);
    let told = ok(
        &server,
        &[
            "produce", "t", "--count", "5000", "--size", "100", "--key", "k", "--json",
        ],
    );
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["records"], 5000);
    let lines = ok(&server, &["consume", "t", "--json"]);
    let lines = json_lines(&lines);
    assert_eq!(lines.len(), 5000);
    assert!(
        lines
            .iter()
            .all(|line| line["key"] == "k" && line["value"].as_str().map(str::len) == Some(100))
    );
    let partitions: BTreeSet<u64> = lines
        .iter()
        .filter_map(|line| line["partition"].as_u64())
        .collect();
    assert_eq!(partitions.len(), 1, "one key goes to one partition");
}

#[test]
fn a_reader_that_goes_away_ends_consume_and_loses_nothing() {
    let dir = Dir::new("pipe");
    let (_nodes, server) = one_node(&dir);
    ok(&server, &["topic", "create", "t", "--partitions", "1"]);
    ok(
        &server,
        &["produce", "t", "--count", "20000", "--size", "200"],
    );
    let mut child = narad(&server, &["consume", "t", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("narad runs");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut first = String::new();
    output.read_line(&mut first).expect("a line");
    drop(output);
    let mut told = String::new();
    child
        .stderr
        .take()
        .expect("a pipe")
        .read_to_string(&mut told)
        .expect("read");
    assert!(child.wait().expect("ends").success(), "{told}");
    assert!(told.contains("records printed"), "{told}");
    // Every record that was not acknowledged comes again; what was printed before was acknowledged.
    let rest = json_lines(&ok(&server, &["consume", "t", "--json"])).len();
    let taken = 20_000 - rest;
    assert!(
        rest > 0 && taken.is_multiple_of(1_000),
        "batches are acknowledged as a whole: {taken}"
    );
}

#[test]
fn ctrl_c_ends_follow_with_its_totals() {
    let dir = Dir::new("follow");
    let (_nodes, server) = one_node(&dir);
    ok(&server, &["topic", "create", "t", "--partitions", "1"]);
    produce(&server, "t", "one\n");
    let mut child = narad(&server, &["consume", "t", "--follow"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("narad runs");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "one\n");
    produce(&server, "t", "two\n");
    line.clear();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "two\n", "it goes on waiting");
    signal(&child, nix::sys::signal::Signal::SIGINT);
    let mut told = String::new();
    child
        .stderr
        .take()
        .expect("a pipe")
        .read_to_string(&mut told)
        .expect("read");
    assert!(child.wait().expect("ends").success(), "{told}");
    assert!(told.contains("2 records printed, 2 acknowledged"), "{told}");
}

#[test]
fn a_node_that_cannot_start_says_why_and_changes_nothing() {
    let dir = Dir::new("refused");
    let (nodes, server) = one_node(&dir);
    ok(&server, &["topic", "create", "t", "--partitions", "1"]);
    produce(&server, "t", "kept\n");
    let spec = nodes[0].spec.clone();
    let refused = |spec: &NodeSpec, says: &str| {
        let output = spec.command().output().expect("narad runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{text}");
        assert!(text.contains(says), "'{says}' is missing in: {text}");
    };
    let other_ports = free_ports();
    let peers = format!("n1=127.0.0.1:{}", other_ports[0]);
    let second = NodeSpec {
        ports: other_ports,
        more: vec!["--peers".into(), peers],
        ..spec.clone()
    };
    refused(&second, spec.dir.to_str().expect("a path"));
    let port_taken = NodeSpec {
        dir: dir.path().join("fresh"),
        ..spec.clone()
    };
    refused(&port_taken, &spec.ports[0].to_string());
    assert_eq!(
        ok(&server, &["consume", "t", "--no-ack"]),
        "kept\n",
        "the node was not disturbed"
    );
    for node in nodes {
        assert!(node.stop(), "SIGTERM is a clean end");
    }
    let other_node = NodeSpec {
        id: "n9".into(),
        more: vec!["--peers".into(), format!("n9=127.0.0.1:{}", spec.ports[0])],
        ..spec.clone()
    };
    refused(&other_node, "n1");
    let mut again = spec.start();
    again.wait_ready();
    assert_eq!(
        ok(&server, &["consume", "t"]),
        "kept\n",
        "and nothing is lost"
    );
}

#[test]
fn a_drained_founding_member_is_held_by_min_voters() {
    let dir = Dir::new("minvoters");
    let nodes = founding(&dir, 3);
    let server = nodes
        .iter()
        .map(|node| node.spec.addr())
        .collect::<Vec<_>>()
        .join(",");
    ok(&server, &["topic", "create", "t", "--partitions", "6"]);
    ok(
        &server,
        &["produce", "t", "--count", "1000", "--size", "100"],
    );
    let dry = ok(
        &server,
        &["cluster", "decommission", "n2", "--dry-run", "--json"],
    );
    let dry: Value = serde_json::from_str(&dry).expect("JSON");
    assert!(
        dry["steps"]
            .as_array()
            .is_some_and(|steps| !steps.is_empty()),
        "{dry}"
    );
    let members = |server: &str| -> Vec<Value> {
        let view: Value =
            serde_json::from_str(&ok(server, &["cluster", "members", "--json"])).expect("JSON");
        view["members"].as_array().expect("members").clone()
    };
    assert!(
        members(&server)
            .iter()
            .all(|member| member["draining"] == false),
        "a dry run drains nobody"
    );
    let error = fails(&server, 1, &["cluster", "decommission", "n2", "--wait"]);
    assert!(
        error.contains("MinVoters") && error.contains("--cancel"),
        "{error}"
    );
    let drained = members(&server)
        .into_iter()
        .find(|member| member["id"] == "n2")
        .expect("still there");
    assert_eq!(
        (&drained["owned"], &drained["draining"]),
        (&Value::from(0), &Value::from(true))
    );
    ok(&server, &["cluster", "decommission", "n2", "--cancel"]);
    assert!(
        members(&server)
            .iter()
            .all(|member| member["draining"] == false)
    );
    let all = ok(&server, &["consume", "t"]);
    assert_eq!(values(&all).len(), 1000, "every record is still there");
    assert!(run(&server, &["cluster", "plan"]).status.success());
    assert!(ok(&server, &["cluster", "moves"]).contains("flipped"));
}
