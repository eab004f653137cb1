//! Watching, while what is watched comes and goes.

use crate::support::Cluster;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};

fn watching(server: &str, args: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_narad"))
        .args(["cluster", "members", "--watch", "--timeout", "2"])
        .args(args)
        .env("NARAD_SERVER", server)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let out = BufReader::new(child.stdout.take().expect("a pipe"));
    (child, out)
}

fn view(out: &mut BufReader<ChildStdout>) -> serde_json::Value {
    let mut line = String::new();
    assert!(
        out.read_line(&mut line).expect("it writes") > 0,
        "it goes on"
    );
    serde_json::from_str(&line).expect("JSON")
}

#[test]
fn a_node_that_restarts_does_not_end_the_watching_of_it() {
    let mut cluster = Cluster::founders("watching", 1, &[]);
    cluster.start_all();
    cluster.wait_ready();
    let server = cluster.nodes[0].addr();
    let (mut child, mut out) = watching(&server, &["--json"]);
    assert_eq!(view(&mut out)["members"][0]["id"], "n1");

    cluster.nodes[0].kill();
    // At least one question goes to nobody: its complaint is awaited before the node is back.
    let mut complaints = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut complaint = String::new();
    complaints.read_line(&mut complaint).expect("it writes");
    let complaint: serde_json::Value = serde_json::from_str(&complaint).expect("JSON");
    assert!(complaint["error"]["hint"].is_string(), "{complaint}");
    cluster.nodes[0].start();
    cluster.wait_ready();
    // What was seen before it went may still be in the pipe.
    let now = (0..10).map(|_| view(&mut out)).last().expect("ten looks");
    assert_eq!(now["members"][0]["status"], "alive", "{now}");

    let pid = i32::try_from(child.id()).expect("a process id");
    kill(Pid::from_raw(pid), Signal::SIGINT).expect("it runs");
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn the_first_look_says_at_once_that_nobody_answers() {
    let mut cluster = Cluster::founders("watched-by-nobody", 1, &[]);
    let server = cluster.nodes[0].addr();
    let (mut child, mut out) = watching(&server, &[]);
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("it ends");
    assert!(rest.is_empty() && !child.wait().expect("it ends").success());
    drop(cluster.nodes.pop());
}
