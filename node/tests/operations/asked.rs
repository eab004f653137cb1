//! Decommissions that cannot end as things are: what is said and asked before one begins, and that nothing
//! has begun when the answer is no.
//!
//! What this file keeps true: a person at a terminal is asked, scripts are not; over HTTP and on the command
//! line a drain can be made to begin only if it can end.

use crate::support::{Cluster, wait_for};
use crate::{fails, ok, text};
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// The command at a terminal of its own, at which somebody types this.
fn at_a_terminal(server: &str, args: &str, typed: &str) -> Output {
    let program = env!("CARGO_BIN_EXE_narad");
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command"])
        .arg(format!("{program} {args}"))
        .arg("/dev/null")
        .env("NARAD_SERVER", server)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bsdutils are everywhere");
    let mut input = child.stdin.take().expect("a pipe");
    // Its end is an end of the terminal's input, too.
    input.write_all(typed.as_bytes()).expect("it reads");
    drop(input);
    child.wait_with_output().expect("it ends")
}

fn draining(cluster: &mut Cluster, id: &str) -> bool {
    let member = cluster.nodes[0].member(id).expect("a member");
    member["draining"] == true
}

#[test]
fn who_does_not_say_yes_has_begun_nothing() {
    // Three voters, of which three have to stay.
    let mut cluster = Cluster::founders("asked", 3, &[]);
    cluster.start_all();
    cluster.wait_ready();
    let leader = cluster.leader();
    let leaves = if leader == "n3" { "n2" } else { "n3" };
    let server = cluster.nodes[0].addr();
    ok(&server, &["topic", "create", "t", "--partitions", "3"]);

    let args = format!("cluster decommission {leaves}");
    for typed in ["n\n", "\n", "perhaps\n", ""] {
        let no = at_a_terminal(&server, &args, typed);
        assert!(!no.status.success(), "{typed:?}: {}", text(&no));
        let told = text(&no);
        assert!(
            told.contains("[y/N]") && told.contains("is not started"),
            "{told}"
        );
        assert!(told.contains("will not end as things are"), "{told}");
        assert!(!draining(&mut cluster, leaves), "after {typed:?}");
    }
    let told = fails(
        &server,
        &["cluster", "decommission", leaves, "--if-possible"],
    );
    assert!(told.contains("is not started"), "{told}");
    let path = format!("/v1/cluster/members/{leaves}/decommission");
    let asked = format!("{path}?if_possible=true");
    let (status, body) = cluster.nodes[0].http("POST", &asked).expect("an answer");
    assert_eq!(status, 409, "{body}");
    assert!(body.contains("it would not end"), "{body}");
    assert!(!draining(&mut cluster, leaves));

    let yes = at_a_terminal(&server, &args, "y\n");
    assert!(yes.status.success(), "{}", text(&yes));
    assert!(draining(&mut cluster, leaves));
    ok(&server, &["cluster", "decommission", leaves, "--cancel"]);
    assert!(!draining(&mut cluster, leaves));
    // A script is not asked; it was told.
    let told = ok(&server, &["cluster", "decommission", leaves]);
    assert!(told.contains("is draining"), "{told}");
    wait_for("it is drained, and held", || {
        let member = cluster.nodes[0].member(leaves)?;
        let held = member["held"].as_str()?;
        (member["owned"] == 0 && held.starts_with("MinVoters")).then_some(())
    });
}
