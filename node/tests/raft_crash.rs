//! A node that is killed outright, and a node whose disk stops taking writes: a child process of its own each time.

mod raft_support;
#[path = "../../storage/tests/common/small_disk.rs"]
mod small_disk;

use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};
use raft_support::*;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const DIR: &str = "NARAD_RAFT_TEST_DIR";

/// A cluster of one in `dir`; the directory stays when it is dropped.
fn cluster_in(dir: &Path) -> Cluster {
    let mut cluster = Cluster::new("unused");
    cluster.dir = Dir(dir.to_owned());
    cluster.snapshot_every = 50;
    cluster.keep_entries = 20;
    cluster
}

/// Runs one of the children below in a process of its own.
fn child(name: &str, dir: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            name,
            "--ignored",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(DIR, dir);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

#[test]
#[ignore = "a child process of the test below"]
fn child_that_writes_until_it_is_killed() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else {
        return;
    };
    let cluster = cluster_in(&dir);
    run(async {
        let nodes = cluster.found(&["solo"]).await;
        let lead = leader(&nodes).await;
        say(&format!("found {}", texts(&lead).len()));
        for number in 0u64.. {
            // Several at once, so that a kill hits groups of every size.
            let group = (0..8).map(|part| {
                lead.propose(format!("{number}.{part}.{}", "x".repeat(300)).into_bytes())
            });
            for done in futures::future::join_all(group).await {
                say(&format!("acked {}", done.unwrap().0));
            }
        }
    });
}

#[test]
fn nothing_acked_is_lost_by_a_kill() {
    let dir = Dir::new("kill");
    let mut acked_ever = 0;
    for round in 1..=5u64 {
        let mut child = child("child_that_writes_until_it_is_killed", &dir.0);
        let mut acked = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            if let Some(index) = line.strip_prefix("acked ") {
                acked = index.parse::<u64>().unwrap();
            }
            if acked > acked_ever + 40 * round {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(acked > acked_ever, "the child wrote in round {round}");
        acked_ever = acked;

        let cluster = cluster_in(&dir.0);
        let dir = &cluster.dir;
        run(async {
            let node = cluster.start("solo").await;
            barrier(&node).await;
            let applied = node.machine().borrow().applied.last().unwrap().0;
            assert!(applied >= acked, "acked {acked}, found {applied}");
            cluster.stop(node).await;
        });
        assert!(dir.0.exists());
        std::mem::forget(cluster);
    }
}

#[test]
#[ignore = "a child process of the test below"]
fn child_whose_disk_stops_taking_writes() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else {
        return;
    };
    // SAFETY: ignoring a signal installs no handler.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.unwrap();
    let cluster = cluster_in(&dir);
    run(async {
        let nodes = cluster.found(&["solo"]).await;
        let lead = leader(&nodes).await;
        for number in 0..10 {
            lead.propose(format!("good {number}").into_bytes())
                .await
                .unwrap();
        }
        setrlimit(Resource::RLIMIT_FSIZE, 1, 1).unwrap();
        for number in 0..3 {
            let error = lead
                .propose(format!("bad {number}").into_bytes())
                .await
                .unwrap_err();
            assert!(error.is_unknown(), "{error}");
        }
        until("Raft has stopped", || lead.fatal().is_some()).await;
        assert!(lead.confirm_leadership().await.is_err());
        lead.shutdown().await;
        say("stopped as it should");
    });
    std::mem::forget(cluster);
}

#[test]
fn a_failed_write_stops_raft_and_a_restart_recovers() {
    let dir = Dir::new("full");
    let mut child = child("child_whose_disk_stops_taking_writes", &dir.0);
    let lines: Vec<_> = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap)
        .collect();
    assert!(child.wait().unwrap().success(), "{lines:?}");
    assert!(
        lines
            .iter()
            .any(|line| line.contains("stopped as it should")),
        "{lines:?}"
    );
    let cluster = cluster_in(&dir.0);
    run(async {
        let node = cluster.start("solo").await;
        barrier(&node).await;
        let good: Vec<_> = texts(&node)
            .into_iter()
            .filter(|text| text.starts_with("good"))
            .collect();
        assert_eq!(
            good,
            (0..10)
                .map(|number| format!("good {number}"))
                .collect::<Vec<_>>()
        );
        node.propose(b"again".to_vec()).await.unwrap();
        cluster.stop(node).await;
    });
    std::mem::forget(cluster);
}

#[test]
fn a_full_disk_is_waited_for() {
    let dir = Dir::new("small-disk");
    let disk = dir.0.join("disk");
    let Some(mount) = small_disk::small_disk(&dir.0.join("image"), &disk, 48 << 20) else {
        return;
    };
    let filler = disk.join("filler");
    let mut cluster = cluster_in(&disk.join("solo-cluster"));
    cluster.snapshot_every = 100_000;
    run(async {
        let nodes = cluster.found(&["solo"]).await;
        let lead = leader(&nodes).await;
        lead.propose(b"before".to_vec()).await.unwrap();
        let mut file = std::fs::File::create(&filler).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        file.sync_all().unwrap();
        drop(file);
        // The segment in use has its room; the next one has none.
        let mut stuck = false;
        for _ in 0..40 {
            match lead.propose(vec![b'x'; 200_000]).await {
                Ok(_) => assert!(!stuck, "nothing overtakes what waits for room"),
                Err(error) => {
                    assert!(error.is_unknown(), "{error}");
                    stuck = true;
                    break;
                }
            }
        }
        assert!(stuck, "the disk never filled");
        assert_eq!(lead.fatal(), None);
        assert!(lead.confirm_leadership().await.is_ok());
        std::fs::remove_file(&filler).unwrap();
        lead.propose_within(b"after".to_vec(), HANG).await.unwrap();
        assert_eq!(texts(&lead).last().unwrap(), "after");
        cluster.stop(lead).await;
    });
    std::mem::forget(cluster);
    drop(mount);
}
