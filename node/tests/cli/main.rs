//! The command line against real nodes: what it prints, how it fails, how it ends.
//!
//! What this file keeps true: exit codes, hints and JSON fields are an interface; a command that is
//! refused leaves nothing behind.

mod support;

use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Stdio};
use support::{
    Dir, Node, NodeSpec, fails, founding, free_ports, narad, ok, produce, run, signal, window,
};

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
    let alter = |visibility: &str| {
        let change = ["--visibility-ms", visibility, "--json"];
        run(
            &server,
            &[&["topic", "alter", "orders"], &change[..]].concat(),
        )
    };
    let altered: Value = serde_json::from_slice(&alter("5000").stdout).expect("JSON");
    assert_eq!(altered["settings"]["visibility_ms"], 5_000);
    assert_eq!(alter("99999999999").status.code(), Some(1), "refused whole");
    let kept = ok(&server, &["topic", "describe", "orders", "--json"]);
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    assert_eq!(kept["settings"]["visibility_ms"], 5_000);
    watching_fits_a_small_window(&server);
    ok(&server, &["topic", "delete", "orders"]);
    assert!(!ok(&server, &["topic", "list"]).contains("orders"));
    fails(&server, 1, &["topic", "delete", "orders"]);
}

/// Rows are written at their place, one by one.
fn watching_fits_a_small_window(server: &str) {
    let (rows, columns) = (3, 30);
    let (mut seen, inner) = window(rows, columns);
    let mut child = narad(server, &["cluster", "members", "--watch"])
        .stdout(inner)
        .spawn()
        .expect("narad runs");
    let (mut shown, mut part) = (String::new(), [0; 4_096]);
    while !shown.contains("more rows") {
        let count = seen.read(&mut part).expect("the command shows more");
        shown.push_str(&String::from_utf8_lossy(&part[..count]));
    }
    signal(&child, nix::sys::signal::Signal::SIGINT);
    assert!(child.wait().expect("ends").success());
    let places = shown
        .split("\x1b[")
        .filter_map(|part| part.split_once(";1H"));
    for (row, _) in places {
        assert!(row.parse::<u16>().expect("a row") <= rows, "{shown:?}");
    }
    for line in shown.split("\x1b[K").skip(1) {
        let line = line.split('\x1b').next().unwrap_or("");
        assert!(line.chars().count() <= usize::from(columns), "{shown:?}");
    }
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
    let since = |time: &str| {
        let args = ["replay", "t", "--partition", "0", "--from-time", time];
        ok(&server, &args).lines().count()
    };
    assert_eq!((since("1h"), since("9999999999999")), (4, 0));
    let error = fails(
        &server,
        1,
        &["replay", "t", "--partition", "9", "--from", "0"],
    );
    assert!(error.contains("0 records printed"), "{error}");
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
    // 2000 records with this key are more than a call may carry.
    let key = "k".repeat(3_000);
    ok(
        &server,
        &[
            "produce", "t", "--count", "2000", "--size", "1", "--key", &key,
        ],
    );
}

/// Starts a command; what it prints, and the rest of it.
fn piped(server: &str, args: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child = narad(server, args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("narad runs");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    (child, output)
}

/// What a command told on standard error until it ended, and its exit code.
fn end_of(mut child: Child) -> (String, Option<i32>) {
    let mut told = String::new();
    let mut error = child.stderr.take().expect("a pipe");
    error.read_to_string(&mut told).expect("read");
    (told, child.wait().expect("ends").code())
}

/// Interrupts a command that is busy printing: lines that it printed, and how it ended.
fn interrupted(server: &str, args: &[&str]) -> (usize, String, Option<i32>) {
    let (child, mut output) = piped(server, args);
    let mut lines = String::new();
    output.read_line(&mut lines).expect("a line");
    // It stands in the pipe, and sees the signal before it asks for more.
    signal(&child, nix::sys::signal::Signal::SIGTERM);
    std::thread::sleep(std::time::Duration::from_millis(200));
    output.read_to_string(&mut lines).expect("text");
    let (told, code) = end_of(child);
    (lines.lines().count(), told, code)
}

const REPLAY: [&str; 7] = ["replay", "t", "--partition", "0", "--from", "0", "--json"];

#[test]
fn readers_that_go_away_end_a_command_and_signals_fail_it_and_nothing_is_lost() {
    let dir = Dir::new("pipe");
    let (_nodes, server) = one_node(&dir);
    ok(&server, &["topic", "create", "t", "--partitions", "1"]);
    let all = 60_000;
    ok(
        &server,
        &["produce", "t", "--count", "60000", "--size", "40"],
    );
    for args in [&REPLAY[..], &["consume", "t", "--json"]] {
        let (child, mut output) = piped(&server, args);
        output.read_line(&mut String::new()).expect("a line");
        drop(output);
        let (told, code) = end_of(child);
        assert_eq!(code, Some(0), "{told}");
        assert!(json_lines(&told)[0]["records"].is_u64(), "{told}");
    }

    let (printed, told, code) = interrupted(&server, &REPLAY);
    assert_eq!(code, Some(1), "{told}");
    assert!((1..all).contains(&printed), "{printed}");
    let told = json_lines(&told);
    assert_eq!(told[0]["records"], printed);
    assert_eq!(told[1]["error"]["code"], "interrupted");
    let go_on = format!("--from {printed}");
    let hint = told[1]["error"]["hint"].as_str().expect("text");
    assert!(hint.contains(&go_on), "{hint}");

    let (printed, told, code) =
        interrupted(&server, &["consume", "t", "--count", "60000", "--json"]);
    assert_eq!(code, Some(1), "{told}");
    let told = json_lines(&told);
    assert_eq!(told[0]["acknowledged"], printed, "{told:?}");
    assert_eq!(told[1]["error"]["code"], "interrupted");
    // Every record that was not acknowledged comes again; what was printed before was acknowledged.
    let rest = json_lines(&ok(&server, &["consume", "t", "--json"])).len();
    let taken = all - rest;
    assert!(
        rest > 0 && taken >= printed && taken.is_multiple_of(1_000),
        "batches are acknowledged as a whole: {taken}"
    );
}

#[test]
fn ctrl_c_ends_follow_with_its_totals_and_fails_produce() {
    let dir = Dir::new("follow");
    let (_nodes, server) = one_node(&dir);
    ok(&server, &["topic", "create", "t", "--partitions", "1"]);
    let mut input = narad(&server, &["produce", "t"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("narad runs");
    let mut typed = input.stdin.take().expect("a pipe");
    let (child, mut output) = piped(&server, &["consume", "t", "--follow"]);
    for line in ["one\n", "two\n"] {
        typed.write_all(line.as_bytes()).expect("written");
        let mut got = String::new();
        output.read_line(&mut got).expect("a line");
        assert_eq!(got, line, "both go on waiting");
    }
    signal(&child, nix::sys::signal::Signal::SIGINT);
    let (told, code) = end_of(child);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("2 records printed, 2 acknowledged"), "{told}");
    signal(&input, nix::sys::signal::Signal::SIGINT);
    let (told, code) = end_of(input);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("2 records acknowledged"), "{told}");
    assert!(told.contains("interrupted"), "{told}");
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
