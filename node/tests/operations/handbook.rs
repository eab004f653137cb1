//! Every command of the handbook, in its order, against five nodes.
//!
//! What this file keeps true: the commands are taken from the handbook as they stand there; only addresses
//! and paths are put in their places. `ssh NODE …` and `systemctl` are played by a small script.

use crate::support::{Cluster, QUICK};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const HANDBOOK: &str = include_str!("../../docs/handbook.md");
/// Far beyond what a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(300);
/// In place of the handbook's network; the whole of 127.0.0.0/8 is this machine's.
const NETWORK: &str = "127.77.0.";

/// Plays `ssh NODE COMMAND…` for nodes that are directories: `systemctl` starts and stops their processes,
/// everything else is run with the node's own paths.
const SSH: &str = r#"#!/usr/bin/env bash
set -euo pipefail
node="$1"; shift
dir="$NODES/$node"
ip="127.77.0.${node#n}"
stop_it() {
  [[ -f "$dir/pid" ]] || return 0
  kill -TERM "$(cat "$dir/pid")" 2>/dev/null || true
  while kill -0 "$(cat "$dir/pid")" 2>/dev/null; do sleep 0.1; done
  rm -f "$dir/pid"
}
start_it() {
  setsid "$NARAD" serve --config "$dir/narad.toml" >>"$dir/log" 2>&1 </dev/null &
  echo $! >"$dir/pid"
  [[ "${1:-}" == --no-block ]] || until curl -fs "http://$ip:7422/readyz" >/dev/null; do
    kill -0 "$(cat "$dir/pid")"; sleep 0.1
  done
}
if [[ "$1" == systemctl ]]; then
  shift
  case "$1" in
  start) start_it "${2#narad}" ;;
  stop) stop_it ;;
  restart) stop_it; start_it ;;
  *) echo "the handbook's test knows no systemctl $1" >&2; exit 1 ;;
  esac
  exit 0
fi
program="$1"; shift
[[ "$program" == narad ]]
exec "$NARAD" "${@//\/var\/lib\/narad/$dir/data}"
"#;

/// What the machines do that the handbook speaks of, without being told by a command.
const LOSE: &str = r#"
lose() {
  for node in "$@"; do
    kill -KILL "$(cat "$NODES/$node/pid")"
    while kill -0 "$(cat "$NODES/$node/pid")" 2>/dev/null; do sleep 0.1; done
    rm "$NODES/$node/pid"
    mv "$NODES/$node/data" "$NODES/$node/lost"
  done
}
find_again() { mv "$NODES/$1/lost" "$NODES/$1/data"; }
"#;

/// The commands of the handbook's blocks as one script.
fn script() -> String {
    let mut script = String::from("set -euo pipefail\n");
    script.push_str(LOSE);
    script.push_str("set -x\n");
    let mut inside = false;
    for line in HANDBOOK.lines() {
        if let Some(test) = line.strip_prefix("<!-- test: ") {
            let test = test.strip_suffix(" -->").expect("a whole comment");
            let test = test.replace("find ", "find_again ");
            writeln!(script, "{test}").unwrap();
        } else if line.starts_with("```") {
            inside = line == "```sh";
        } else if inside {
            let line = line.replace("10.0.0.", NETWORK);
            // Somebody watches for a while and ends it with ctrl-c.
            let watch = line.contains("--watch");
            let prefix = if watch {
                "timeout --preserve-status -s INT 3 "
            } else {
                ""
            };
            writeln!(script, "{prefix}{line}").unwrap();
        }
    }
    script
}

fn config(n: usize, dir: &Path) -> String {
    let ip = format!("{NETWORK}{n}");
    let mut text = format!(
        "node_id = \"n{n}\"\ndata_dir = \"{}\"\nlisten = \"{ip}:7420\"\nhttp = \"{ip}:7422\"\ncpus = \"none\"\nshards = 1\n",
        dir.join("data").display()
    );
    let at = |n: usize| format!("{NETWORK}{n}:7420");
    if n <= 3 {
        let peers: Vec<String> = (1..=3).map(|n| format!("\"n{n}={}\"", at(n))).collect();
        writeln!(text, "peers = [{}]", peers.join(", ")).unwrap();
    } else {
        writeln!(text, "join = [\"{}\", \"{}\"]", at(1), at(2)).unwrap();
    }
    for word in QUICK {
        let (key, value) = word.trim_start_matches('-').split_once('=').unwrap();
        writeln!(text, "{} = {value}", key.replace('-', "_")).unwrap();
    }
    text
}

/// Ends what the script has started, by its own pid files.
struct Processes(PathBuf);

impl Drop for Processes {
    fn drop(&mut self) {
        for n in 1..=5 {
            let dir = self.0.join(format!("n{n}"));
            let Ok(pid) = std::fs::read_to_string(dir.join("pid")) else {
                continue;
            };
            if let Ok(pid) = pid.trim().parse() {
                let pid = nix::unistd::Pid::from_raw(pid);
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
            if std::thread::panicking() {
                let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(15)..].join("\n");
                eprintln!("--- n{n}\n{tail}");
            }
        }
    }
}

fn executable(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn every_command_of_the_handbook_does_what_it_says() {
    let cluster = Cluster::new("handbook");
    let root = cluster.dir.clone();
    let nodes = root.join("nodes");
    let bin = root.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    for n in 1..=5 {
        let dir = nodes.join(format!("n{n}"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("narad.toml"), config(n, &dir)).unwrap();
    }
    executable(&bin.join("ssh"), SSH);
    let program = Path::new(env!("CARGO_BIN_EXE_narad"));
    std::os::unix::fs::symlink(program, bin.join("narad")).unwrap();
    let script = script();
    assert!(script.matches("narad ").count() > 40, "{script}");
    let path = root.join("script");
    std::fs::write(&path, &script).unwrap();
    let _processes = Processes(nodes.clone());

    let log = std::fs::File::create(root.join("output")).unwrap();
    let mut child = Command::new("bash")
        .arg(&path)
        .env("NODES", &nodes)
        .env("NARAD", program)
        .env_remove("NARAD_SERVER")
        .env(
            "PATH",
            format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()),
        )
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .expect("bash runs");
    let began = Instant::now();
    let ended = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    let output = std::fs::read_to_string(root.join("output")).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    let tail = lines[lines.len().saturating_sub(60)..].join("\n");
    assert!(
        ended.is_some_and(|status| status.success()),
        "{ended:?}\n{tail}"
    );
    // It went all the way, and what was promised was said.
    for part in [
        "n4 is out of the cluster",
        "the move of orders/0 is cancelled",
        "no more moves are started",
        "nothing was changed",
        "n5 is given up",
        "records handed to the cluster",
        "n3 is the only voter now",
        "n2 is given up",
    ] {
        assert!(output.contains(part), "{part} is missing:\n{tail}");
    }
}
