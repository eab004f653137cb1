//! Founding, restarting, joining, draining, and what a start refuses: on real processes.

mod support;

use nix::sys::signal::Signal;
use std::process::Command;
use support::{Cluster, wait_for};

fn incarnations(cluster: &Cluster) -> Vec<u64> {
    cluster
        .nodes
        .iter()
        .map(|node| {
            node.member(&node.id).expect("a member")["incarnation"]
                .as_u64()
                .unwrap()
        })
        .collect()
}

#[test]
fn three_founders_elect_a_leader_register_and_come_back() {
    let mut cluster = Cluster::founders("founders", 3, &[]);
    cluster.start_all();
    cluster.wait_ready();
    cluster.leader();
    wait_for("all three vote and are alive", || {
        let view = cluster.nodes[0].get("/v1/cluster/members")?;
        let members = view["members"].as_array()?;
        (members.len() == 3
            && members.iter().all(|m| m["status"] == "alive")
            && members
                .iter()
                .all(|m| m["role"] == "voter" || m["role"] == "leader"))
        .then_some(())
    });
    let before = incarnations(&cluster);
    for node in &mut cluster.nodes {
        assert!(node.stop().success(), "{}", node.log());
        assert!(!node.log().contains("ended badly"), "{}", node.log());
    }
    cluster.start_all();
    cluster.wait_ready();
    let after = incarnations(&cluster);
    assert!(before.iter().zip(&after).all(|(old, new)| old != new));

    // The same after all of them were killed.
    cluster.nodes.iter_mut().for_each(|node| node.kill());
    cluster.start_all();
    cluster.wait_ready();
}

#[test]
fn a_stopped_leader_is_replaced_and_a_dead_member_is_marked_and_revived() {
    let mut cluster = Cluster::founders("leader-stops", 3, &[]);
    cluster.start_all();
    cluster.wait_ready();
    let leader = cluster.leader();
    assert!(cluster.node(&leader).stop().success());
    assert!(
        cluster
            .node(&leader)
            .log()
            .contains("leadership has been handed over")
    );
    let other = cluster.leader();
    assert_ne!(leader, other);
    wait_for("the stopped node is marked dead", || {
        (cluster.node(&other).member(&leader)?["status"] == "dead").then_some(())
    });
    cluster.node(&leader).start();
    cluster.node(&leader).wait_ready();
    wait_for("it is alive again", || {
        (cluster.node(&other).member(&leader)?["status"] == "alive").then_some(())
    });
}

#[test]
fn a_paused_member_is_marked_dead_and_revives_by_itself() {
    let mut cluster = Cluster::founders("paused", 3, &[]);
    cluster.start_all();
    cluster.wait_ready();
    let leader = cluster.leader();
    let paused = ["n1", "n2", "n3"]
        .into_iter()
        .find(|id| *id != leader)
        .unwrap();
    cluster.node(paused).signal(Signal::SIGSTOP);
    wait_for("it is marked dead", || {
        (cluster.node(&leader).member(paused)?["status"] == "dead").then_some(())
    });
    cluster.node(paused).signal(Signal::SIGCONT);
    wait_for("it is alive again, in the same life", || {
        (cluster.node(&leader).member(paused)?["status"] == "alive").then_some(())
    });
}

#[test]
fn a_fourth_node_joins_votes_and_can_be_drained_off_again() {
    let mut cluster = Cluster::founders("joins", 3, &[]);
    cluster.start_all();
    cluster.wait_ready();
    // Through a node that need not lead.
    let leader = cluster.leader();
    let through = cluster
        .nodes
        .iter()
        .find(|node| node.id != leader)
        .unwrap()
        .addr();
    let join = format!("--join={through}");
    let fourth = cluster.add("n4", &[&join]);
    cluster.nodes[fourth].start();
    cluster.nodes[fourth].wait_ready();
    wait_for("it votes", || {
        (cluster.nodes[0].member("n4")?["role"] == "voter").then_some(())
    });

    let (status, body) = cluster.nodes[0]
        .http("POST", "/v1/cluster/members/n4/decommission")
        .unwrap();
    assert_eq!(status, 202, "{body}");
    let status = cluster.nodes[fourth].wait_end();
    let log = cluster.nodes[fourth].log();
    assert!(status.success(), "{log}");
    assert!(log.contains("has been decommissioned"), "{log}");
    wait_for("it is gone", || {
        let view = cluster.nodes[0].get("/v1/cluster/members")?;
        (view["members"].as_array()?.len() == 3).then_some(())
    });
    // It is told so when it comes back.
    cluster.nodes[fourth].start();
    assert!(!cluster.nodes[fourth].wait_end().success());
}

#[test]
fn the_drained_leader_of_four_gives_leadership_away_and_leaves() {
    let mut cluster = Cluster::founders("leader-leaves", 4, &[]);
    cluster.start_all();
    cluster.wait_ready();
    let leader = cluster.leader();
    let path = format!("/v1/cluster/members/{leader}/decommission");
    assert_eq!(cluster.nodes[0].http("POST", &path).unwrap().0, 202);
    let ended = cluster.node(&leader).wait_end();
    assert!(ended.success());
    let next = cluster.leader();
    assert_ne!(next, leader);
    assert!(cluster.node(&next).member(&leader).is_none());
}

#[test]
fn three_members_cannot_lose_one_and_the_reason_is_shown() {
    let mut cluster = Cluster::founders("min-voters", 3, &[]);
    cluster.start_all();
    cluster.wait_ready();
    let leader = cluster.leader();
    let drained = ["n1", "n2", "n3"]
        .into_iter()
        .find(|id| *id != leader)
        .unwrap();
    let path = format!("/v1/cluster/members/{drained}/decommission");
    assert_eq!(cluster.nodes[0].http("POST", &path).unwrap().0, 202);
    // Every node shows it, whoever is asked.
    for at in 0..3 {
        wait_for("the reason is shown", || {
            let member = cluster.nodes[at].member(drained)?;
            let held = member["held"].as_str()?;
            (member["draining"] == true && held.contains("MinVoters")).then_some(())
        });
    }
    // The flag survives a restart of the drained node, and can be taken back.
    assert!(cluster.node(drained).stop().success());
    cluster.node(drained).start();
    cluster.node(drained).wait_ready();
    assert_eq!(
        cluster.node(&leader).member(drained).unwrap()["draining"],
        true
    );
    assert_eq!(cluster.nodes[0].http("DELETE", &path).unwrap().0, 200);
    assert_eq!(cluster.nodes[0].member(drained).unwrap()["draining"], false);
    assert_eq!(cluster.nodes[0].member(drained).unwrap()["held"], "");
}

#[test]
fn the_admin_port_answers_with_proper_codes() {
    let mut cluster = Cluster::founders("admin", 1, &["--min-voters=1"]);
    cluster.start_all();
    cluster.wait_ready();
    let node = &cluster.nodes[0];
    for (method, path, status) in [
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/v1/cluster/members", 200),
        ("GET", "/v1/cluster/moves", 200),
        ("GET", "/v1/cluster/plan", 200),
        ("GET", "/v1/topics", 200),
        ("GET", "/v1/topics/none", 404),
        ("GET", "/v1/nothing", 404),
        ("PUT", "/v1/cluster/members/n1/decommission", 405),
        ("POST", "/healthz", 405),
        ("POST", "/v1/cluster/members/n9/decommission", 404),
        ("POST", "/v1/cluster/members/%20/decommission", 400),
    ] {
        let (answered, body) = node.http(method, path).unwrap();
        assert_eq!(answered, status, "{method} {path}: {body}");
        if status >= 400 {
            let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert!(problem["error"]["message"].is_string(), "{body}");
            assert!(problem["error"]["hint"].is_string(), "{body}");
        }
    }
    let metrics = node.http("GET", "/metrics").unwrap().1;
    assert!(metrics.contains("narad_leader 1"), "{metrics}");
    assert!(metrics.contains("narad_members_alive 1"), "{metrics}");
}

/// Sends bytes to the admin port as they are; what comes back until the end.
fn raw_http(node: &support::Node, bytes: &[u8]) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", node.port + 2)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn what_a_client_of_the_admin_port_claims_or_leaves_out_harms_nobody() {
    let mut cluster = Cluster::founders("admin", 1, &["--min-voters=1"]);
    cluster.start_all();
    cluster.wait_ready();
    let node = &cluster.nodes[0];
    let path = "/v1/cluster/members/n1/decommission";
    for header in [
        "Content-Length: 99999999999999",
        "Content-Length: 18446744073709551615",
        "Content-Length: 9999999999999999999999999",
        "Content-Length: 5000",
        "Transfer-Encoding: chunked",
    ] {
        for line in [format!("POST {path}"), "GET /healthz".into()] {
            let text = format!("{line} HTTP/1.1\r\nHost: a\r\n{header}\r\n\r\nabc");
            let answer = raw_http(node, text.as_bytes());
            assert!(answer.starts_with("HTTP/1.1 413 "), "{header}: {answer}");
        }
    }
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(9000));
    let answer = raw_http(node, long.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let answer = raw_http(node, b"\x16\x03\x01 no http\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");

    // Nothing of it was carried out.
    assert_eq!(node.member("n1").unwrap()["draining"], false);
    // A small body is read over.
    let answer = raw_http(
        node,
        b"GET /healthz HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
    );
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let answer = raw_http(node, b"HEAD /healthz HTTP/1.0\r\n\r\n");
    assert!(answer.ends_with("\r\n\r\n"), "no body: {answer}");
    let answer = raw_http(node, b"PUT /v1/topics HTTP/1.1\r\n\r\n");
    assert!(answer.contains("\r\nAllow: GET, HEAD\r\n"), "{answer}");

    // More silent clients than there are threads only take their bounded time.
    let silent: Vec<_> = (0..40)
        .map(|_| std::net::TcpStream::connect(("127.0.0.1", node.port + 2)).unwrap())
        .collect();
    assert_eq!(node.http("GET", "/readyz").unwrap().0, 200);
    drop(silent);
    assert!(cluster.nodes[0].runs(), "{}", cluster.nodes[0].log());
}

/// Runs `narad serve` that should be refused; its standard error.
fn refused(args: &[String]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_narad"))
        .arg("serve")
        .args(args)
        .output()
        .expect("narad starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{text}");
    text
}

#[test]
fn a_start_that_cannot_be_right_is_refused_and_changes_nothing() {
    let mut cluster = Cluster::founders("refusals", 1, &["--min-voters=1"]);
    cluster.start_all();
    cluster.wait_ready();
    let port = support::free_ports();
    let base = |id: &str, dir: &std::path::Path, port: u16| -> Vec<String> {
        vec![
            format!("--node-id={id}"),
            format!("--data-dir={}", dir.display()),
            format!("--listen=127.0.0.1:{port}"),
            "--cpus=none".into(),
        ]
    };
    let fresh = cluster.dir.join("fresh");
    let taken = cluster.nodes[0].port;
    let own = cluster.nodes[0].dir.clone();

    // A second process on the same directory, with other ports.
    let text = refused(&base("n1", &own, port));
    assert!(text.contains("in use by another narad process"), "{text}");
    assert!(text.contains(&cluster.nodes[0].pid().to_string()), "{text}");

    // A port that is taken, each of them.
    let join = format!("--join=127.0.0.1:{taken}");
    let mut args = base("n2", &fresh, taken);
    args.push(join.clone());
    let text = refused(&args);
    assert!(text.contains("cannot be bound"), "{text}");
    for flag in ["--bulk", "--http"] {
        let mut args = base("n2", &fresh, port);
        args.push(join.clone());
        args.push(format!("{flag}=127.0.0.1:{}", taken + 1));
        let text = refused(&args);
        assert!(
            text.contains(flag) && text.contains("cannot be bound"),
            "{text}"
        );
    }

    // An address that is not this machine's.
    let mut args = base("n2", &fresh, port);
    args[2] = "--listen=203.0.113.1:7000".into();
    args.extend([join.clone(), "--insecure".into()]);
    let text = refused(&args);
    assert!(text.contains("cannot be bound"), "{text}");

    // Neither founding nor joining.
    let text = refused(&base("n2", &fresh, port));
    assert!(
        text.contains("--peers") && text.contains("--join"),
        "{text}"
    );

    // Somebody else's directory.
    let foreign = cluster.dir.join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("letter.txt"), "dear").unwrap();
    let mut args = base("n2", &foreign, port);
    args.push(join.clone());
    let text = refused(&args);
    assert!(text.contains("not a narad data directory"), "{text}");
    assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1);
    assert!(!fresh.exists(), "a refused start left something behind");

    // Another node's directory, and a newer format.
    assert!(cluster.nodes[0].stop().success());
    let text = refused(&base("n2", &own, port));
    assert!(text.contains("belongs to node n1"), "{text}");
    let file = own.join("node.json");
    let json = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, json.replace("\"format\": 1", "\"format\": 99")).unwrap();
    let text = refused(&base("n1", &own, port));
    assert!(text.contains("format 99"), "{text}");
    std::fs::write(&file, json).unwrap();
    cluster.nodes[0].start();
    cluster.nodes[0].wait_ready();
}

#[test]
fn a_wiped_disk_under_an_old_id_is_refused() {
    let mut cluster = Cluster::founders("wiped", 3, &[]);
    cluster.start_all();
    cluster.wait_ready();
    let leader = cluster.leader();
    let wiped = ["n1", "n2", "n3"]
        .into_iter()
        .find(|id| *id != leader)
        .unwrap();
    let node = cluster.node(wiped);
    node.kill();
    std::fs::remove_dir_all(&node.dir).unwrap();
    node.start();
    assert!(!node.wait_end().success());
    assert!(
        node.log().contains("another data directory"),
        "{}",
        node.log()
    );
    // The others never noticed.
    assert_eq!(cluster.leader(), leader);
}

#[test]
fn a_signal_ends_the_process_in_order() {
    let mut cluster = Cluster::founders("signals", 1, &["--min-voters=1"]);
    cluster.start_all();
    cluster.wait_ready();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let node = &mut cluster.nodes[0];
        node.signal(signal);
        assert!(node.wait_end().success());
        assert!(node.log().trim_end().ends_with("stopped"), "{}", node.log());
        node.start();
        node.wait_ready();
    }
}

#[test]
fn a_member_may_come_back_at_another_address() {
    let mut cluster = Cluster::founders("address", 3, &[]);
    cluster.start_all();
    cluster.wait_ready();
    let join = format!("--join={}", cluster.nodes[0].addr());
    let fourth = cluster.add("n4", &[&join]);
    cluster.nodes[fourth].start();
    cluster.nodes[fourth].wait_ready();
    wait_for("it votes", || {
        (cluster.nodes[0].member("n4")?["role"] == "voter").then_some(())
    });
    let node = &mut cluster.nodes[fourth];
    assert!(node.stop().success());
    node.relocate(support::free_ports());
    node.start();
    node.wait_ready();
    let addr = cluster.nodes[fourth].addr();
    wait_for("the others know its new address", || {
        (cluster.nodes[0].member("n4")?["addr"] == addr.as_str()).then_some(())
    });
    // It is really reached there: without it and one more there would be no majority of four.
    let leader = cluster.leader();
    let other = ["n1", "n2", "n3"]
        .into_iter()
        .find(|id| *id != leader)
        .unwrap();
    cluster.node(other).kill();
    let (status, body) = cluster
        .node(&leader)
        .http("POST", "/v1/cluster/members/n4/decommission")
        .unwrap();
    assert_eq!(status, 202, "{body}");
}

#[test]
fn a_learner_becomes_a_voter_before_the_drained_leader_leaves() {
    let mut cluster = Cluster::founders("learner-first", 3, &["--max-voters=3"]);
    cluster.start_all();
    cluster.wait_ready();
    let join = format!("--join={}", cluster.nodes[1].addr());
    let fourth = cluster.add("n4", &[&join, "--max-voters=3"]);
    cluster.nodes[fourth].start();
    cluster.nodes[fourth].wait_ready();
    let leader = cluster.leader();
    assert_eq!(
        cluster.node(&leader).member("n4").unwrap()["role"],
        "learner"
    );
    let path = format!("/v1/cluster/members/{leader}/decommission");
    assert_eq!(cluster.nodes[fourth].http("POST", &path).unwrap().0, 202);
    assert!(cluster.node(&leader).wait_end().success());
    wait_for("three voters are left", || {
        let view = cluster.nodes[fourth].get("/v1/cluster/members")?;
        let members = view["members"].as_array()?;
        let votes = |m: &&serde_json::Value| m["role"] == "voter" || m["role"] == "leader";
        (members.len() == 3 && members.iter().filter(votes).count() == 3).then_some(())
    });
}
