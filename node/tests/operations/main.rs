//! What an operator does and meets: founding on disks that were lost, forgetting a node, a lost
//! quorum, pausing, watching. On real processes.

#[path = "../support/client.rs"]
mod client;
#[path = "../support/mod.rs"]
mod support;

mod asked;
mod cancelled;
mod controller;
mod disk_errors;
mod drains;
mod forwarding;
mod founding;
mod handbook;
mod removed;
mod service;
mod session;
mod snapshots;
mod strangers;
mod watching;
mod worst_day;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use support::{Cluster, wait_for};

/// A command of the program against these servers.
fn narad(server: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narad"));
    command
        .args(args)
        .env("NARAD_SERVER", server)
        .stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Runs a command that must succeed; what it printed.
fn ok(server: &str, args: &[&str]) -> String {
    let output = narad(server, args).output().expect("narad runs");
    assert!(output.status.success(), "narad {args:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that must fail; everything that it printed.
fn fails(server: &str, args: &[&str]) -> String {
    let output = narad(server, args).output().expect("narad runs");
    assert!(
        !output.status.success(),
        "narad {args:?}: {}",
        text(&output)
    );
    text(&output)
}

/// Starts to produce these lines; further arguments as given.
fn producing(server: &str, args: &[&str], lines: &[String]) -> std::process::Child {
    let mut child = narad(server, args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("narad runs");
    let mut input = child.stdin.take().expect("a pipe");
    let text = lines.join("\n");
    std::thread::spawn(move || {
        // A command that gives up early closes its end.
        let _ = input.write_all(text.as_bytes());
    });
    child
}

fn produce(server: &str, topic: &str, lines: &[String]) {
    let child = producing(server, &["produce", topic], lines);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output));
}

/// Produces `each` lines into each of the partitions of a topic, by name; all of them.
fn produce_everywhere(server: &str, topic: &str, partitions: u32, each: usize) -> Vec<String> {
    let mut all = Vec::new();
    for partition in 0..partitions {
        let lines = numbered(&format!("{topic}-{partition}"), each);
        let args = ["produce", topic, "--partition", &partition.to_string()];
        let child = producing(server, &args, &lines);
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", text(&output));
        all.extend(lines);
    }
    all
}

fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}-{n:06}")).collect()
}

/// Consumes until each of these was seen; they are acknowledged.
fn wait_consumed(server: &str, topic: &str, lines: &[String]) {
    let mut missing: BTreeSet<&str> = lines.iter().map(String::as_str).collect();
    wait_for("every acknowledged record comes", || {
        for line in ok(server, &["consume", topic]).lines() {
            missing.remove(line);
        }
        missing.is_empty().then_some(())
    });
}

/// Waits until the others count a node as dead.
fn wait_dead(cluster: &mut Cluster, at: usize, id: &str) {
    wait_for("it is marked dead", || {
        (cluster.nodes[at].member(id)?["status"] == "dead").then_some(())
    });
}
