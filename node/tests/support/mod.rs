//! Narad processes for tests: started on free loopback ports with their data on a real disk.
//!
//! What this file keeps true: only processes that a test started are signalled, by their own
//! handle; every wait has a generous bound and asserts nothing about time; data of a failed test
//! stays, with the end of every log printed.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(missing_docs, unreachable_pub, reason = "shared by test binaries only")]

use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

// As `build.rs` asks the linker to.
narad_wire::runtime_hooks!();

/// Bound of every wait: the machine may be busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Short enough that a death shows in a test, long enough for a busy machine.
pub const QUICK: [&str; 16] = [
    "--heartbeat-ms=250",
    "--election-min-ms=800",
    "--election-max-ms=1600",
    "--move-lease-ms=3000",
    "--clock-drift-ms=200",
    "--dead-after-ms=4000",
    "--force-promote-after-ms=8000",
    "--freeze-ttl-ms=2000",
    "--planner-tick-ms=1000",
    "--stop-timeout-ms=60000",
    "--segment-bytes=16777216",
    "--wal-cap-bytes=268435456",
    "--freeze-budget-ms=5",
    "--max-moves-in=4",
    "--max-moves-out=4",
    "--max-in-flight-moves=8",
];

/// Polls until `found` gives something.
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < until, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Writes of a process beyond this offset of any file fail while it is set: a soft limit, which may be raised again.
pub fn limit_files(pid: i32, bytes: &str) {
    let done = Command::new("prlimit")
        .args([format!("--pid={pid}"), format!("--fsize={bytes}:")])
        .status()
        .expect("prlimit is part of util-linux");
    assert!(done.success());
}

/// Three neighbouring ports that nobody listens on, below the range from which the kernel takes
/// ports for outgoing connections. Each process of the test run begins at another place.
pub fn free_ports() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..2_000 {
        let step = NEXT.fetch_add(1, Ordering::SeqCst);
        let seed = std::process::id() as u16;
        let slot = seed.wrapping_mul(37).wrapping_add(step) % 5_000;
        let base = 12_000 + slot * 4;
        let free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if (0..3).all(|n| free(base + n)) {
            return base;
        }
    }
    panic!("no free ports");
}

/// One node: its place, its arguments, and its process while it runs.
pub struct Node {
    pub id: String,
    pub port: u16,
    pub dir: PathBuf,
    log: PathBuf,
    args: Vec<String>,
    /// Variables of its next start only.
    pub next_env: Vec<(String, String)>,
    /// A program, with its arguments, that becomes the node in the end.
    pub starter: Vec<String>,
    child: Option<Child>,
}

impl Node {
    /// Address of its Cap'n Proto listener.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Everything that it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn pid(&self) -> i32 {
        let child = self.child.as_ref().expect("it runs");
        i32::try_from(child.id()).expect("a pid")
    }

    /// Changes an argument (`--name=value`) of its next start.
    pub fn set(&mut self, name: &str, value: &str) {
        let prefix = format!("{name}=");
        self.args.retain(|word| !word.starts_with(&prefix));
        self.args.push(format!("{prefix}{value}"));
    }

    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.id);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("the log can be written");
        let program = env!("CARGO_BIN_EXE_narad").to_owned();
        let mut words = self.starter.iter().chain([&program]);
        let child = Command::new(words.next().expect("the program at least"))
            .args(words)
            .args(&self.args)
            .env_remove("NARAD_CONFIG")
            .envs(self.next_env.drain(..))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("narad starts");
        self.child = Some(child);
    }

    /// The next start listens at other ports.
    pub fn relocate(&mut self, port: u16) {
        self.port = port;
        for (flag, port) in [("--listen=", port), ("--http=", port + 2)] {
            let arg = self.args.iter_mut().find(|arg| arg.starts_with(flag));
            *arg.expect("the flag is there") = format!("{flag}127.0.0.1:{port}");
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it can be waited for");
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal)
            .expect("the process is ours");
    }

    /// SIGTERM, and waits for the end.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(nix::sys::signal::Signal::SIGTERM);
        self.wait_end()
    }

    /// Waits until it has ended by itself.
    pub fn wait_end(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        wait_for(&format!("{} ends", self.id), || {
            child.try_wait().expect("it can be waited for")
        })
    }

    pub fn runs(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| child.try_wait().expect("ours").is_none())
    }

    /// Status and body of a request to its admin port; `None` while nobody answers.
    pub fn http(&self, method: &str, path: &str) -> Option<(u16, String)> {
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], self.port + 2));
        let mut stream = TcpStream::connect_timeout(&addr, Duration::from_secs(5)).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .ok()?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: narad\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, body.to_owned()))
    }

    /// JSON of a successful GET.
    pub fn get(&self, path: &str) -> Option<Value> {
        let (status, body) = self.http("GET", path)?;
        (status == 200).then(|| serde_json::from_str(&body).expect("JSON"))
    }

    pub fn wait_ready(&mut self) {
        wait_for(&format!("{} is ready", self.id), || {
            assert!(self.runs(), "{} ended:\n{}", self.id, self.log());
            (self.http("GET", "/readyz")?.0 == 200).then_some(())
        });
    }

    /// A member as this node shows it.
    pub fn member(&self, id: &str) -> Option<Value> {
        let view = self.get("/v1/cluster/members")?;
        let list = view["members"].as_array()?;
        list.iter().find(|member| member["id"] == id).cloned()
    }
}

/// Some nodes in one directory.
pub struct Cluster {
    pub dir: PathBuf,
    pub nodes: Vec<Node>,
}

impl Cluster {
    /// An empty one; `name` is unique among the tests.
    pub fn new(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).expect("the target directory can be written");
        Self {
            dir,
            nodes: Vec::new(),
        }
    }

    /// Adds a node that is not started yet.
    pub fn add(&mut self, id: &str, more: &[&str]) -> usize {
        let port = free_ports();
        self.add_at(id, port, more)
    }

    fn add_at(&mut self, id: &str, port: u16, more: &[&str]) -> usize {
        let dir = self.dir.join(id);
        let own = [
            "serve".to_owned(),
            format!("--node-id={id}"),
            format!("--data-dir={}", dir.display()),
            format!("--listen=127.0.0.1:{port}"),
            format!("--http=127.0.0.1:{}", port + 2),
            "--cpus=none".to_owned(),
            "--shards=1".to_owned(),
        ];
        // A test may choose its own number of shards.
        let chosen = more.iter().any(|word| word.starts_with("--shards"));
        let args = own
            .into_iter()
            .filter(|word| !chosen || !word.starts_with("--shards"))
            .chain(QUICK.iter().map(|&word| word.to_owned()))
            .chain(more.iter().map(|&word| word.to_owned()))
            .collect();
        self.nodes.push(Node {
            id: id.to_owned(),
            port,
            log: self.dir.join(format!("{id}.log")),
            dir,
            args,
            next_env: Vec::new(),
            starter: Vec::new(),
            child: None,
        });
        self.nodes.len() - 1
    }

    /// `count` founding members n1, n2, …, not started yet.
    pub fn founders(name: &str, count: usize, more: &[&str]) -> Self {
        let mut cluster = Self::new(name);
        let ports: Vec<u16> = (0..count).map(|_| free_ports()).collect();
        let list: Vec<String> = (1..)
            .zip(&ports)
            .map(|(n, port)| format!("n{n}=127.0.0.1:{port}"))
            .collect();
        let peers = format!("--peers={}", list.join(","));
        for (n, port) in (1..).zip(ports) {
            let words: Vec<&str> = [peers.as_str()]
                .into_iter()
                .chain(more.iter().copied())
                .collect();
            cluster.add_at(&format!("n{n}"), port, &words);
        }
        cluster
    }

    pub fn start_all(&mut self) {
        self.nodes.iter_mut().for_each(Node::start);
    }

    pub fn wait_ready(&mut self) {
        self.nodes.iter_mut().for_each(Node::wait_ready);
    }

    /// The id of the leader that a majority of the running nodes agrees on.
    pub fn leader(&mut self) -> String {
        wait_for("a leader that all agree on", || {
            let mut told = Vec::new();
            for node in &mut self.nodes {
                if node.runs() {
                    told.push(
                        node.get("/v1/cluster/members")?["leader"]
                            .as_str()?
                            .to_owned(),
                    );
                }
            }
            let first = told.first()?.clone();
            (!first.is_empty() && told.iter().all(|leader| *leader == first)).then_some(first)
        })
    }

    pub fn node(&mut self, id: &str) -> &mut Node {
        self.nodes
            .iter_mut()
            .find(|node| node.id == id)
            .expect("there is such a node")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(child) = &mut node.child {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        if std::thread::panicking() {
            for node in &self.nodes {
                let log = node.log();
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(25)..].join("\n");
                eprintln!("--- {} ({})\n{tail}", node.id, node.log.display());
            }
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}
