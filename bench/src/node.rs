//! Nodes of a benchmark's own cluster, as processes of the `narad` program.
//!
//! What this file keeps true: every process that is started here is ended here, also when the
//! benchmark fails; data goes to a directory on a real disk and is removed.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a node may take until it is ready.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a node may take to stop before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What goes wrong with the nodes.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The program cannot be started.
    #[error(
        "cannot start {program}: {error}; build it (cargo build --release -p narad) or name it with --narad"
    )]
    Start {
        /// Which.
        program: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A directory or file cannot be made.
    #[error("cannot use {path}: {error}; name another directory with --dir")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It ended or does not answer.
    #[error("node {id} is not ready: {why}; its log: {log}")]
    NotReady {
        /// Which.
        id: String,
        /// What was seen.
        why: String,
        /// Where it says why.
        log: PathBuf,
    },
}

/// One running node.
#[derive(Debug)]
pub struct Node {
    id: String,
    child: Child,
    listen: String,
    http: String,
    log: PathBuf,
}

/// A cluster of founding members; ended and removed when dropped.
#[derive(Debug)]
pub struct Cluster {
    dir: PathBuf,
    nodes: Vec<Node>,
    /// Leave the directory, for its logs.
    pub keep: bool,
}

/// Three ports that nobody uses now; held together while they are probed, so that they differ.
fn free_ports() -> std::io::Result<[u16; 3]> {
    let probes = [
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
        TcpListener::bind("127.0.0.1:0")?,
    ];
    let mut ports = [0; 3];
    for (port, probe) in ports.iter_mut().zip(&probes) {
        *port = probe.local_addr()?.port();
    }
    Ok(ports)
}

impl Cluster {
    /// Starts `count` founding members with their data below `dir` and waits until they are ready.
    ///
    /// # Errors
    /// [`NodeError`]; whatever was started is ended.
    pub fn start(program: &Path, dir: &Path, count: usize) -> Result<Self, NodeError> {
        Self::start_with(program, dir, count, &[])
    }

    /// As [`Cluster::start`], with further arguments for every node.
    ///
    /// # Errors
    /// [`NodeError`]; whatever was started is ended.
    pub fn start_with(
        program: &Path,
        dir: &Path,
        count: usize,
        more: &[&str],
    ) -> Result<Self, NodeError> {
        let dir = dir.join(format!("narad-bench-{}", std::process::id()));
        let at = |path: &Path, error| NodeError::Directory {
            path: path.to_owned(),
            error,
        };
        std::fs::create_dir_all(&dir).map_err(|error| at(&dir, error))?;
        let mut cluster = Self {
            dir: dir.clone(),
            nodes: Vec::new(),
            keep: false,
        };
        let mut ports = Vec::new();
        for _ in 0..count {
            ports.push(free_ports().map_err(|error| at(&dir, error))?);
        }
        let name = |index: usize| format!("b{}", index + 1);
        let peers: Vec<String> = (0..count)
            .map(|index| format!("{}=127.0.0.1:{}", name(index), ports[index][0]))
            .collect();
        for (index, ports) in ports.iter().enumerate() {
            let node = launch(program, &dir, &name(index), *ports, &peers.join(","), more)?;
            cluster.nodes.push(node);
        }
        for node in &mut cluster.nodes {
            node.wait_ready()?;
        }
        Ok(cluster)
    }

    /// Addresses for clients.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.listen.clone()).collect()
    }

    /// Ids and processes, in order.
    pub fn processes(&self) -> impl Iterator<Item = (String, u32)> {
        self.nodes
            .iter()
            .map(|node| (node.id.clone(), node.child.id()))
    }

    /// Ids in order.
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.id.clone()).collect()
    }

    /// Process ids in order.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        self.nodes.iter().map(|node| node.child.id()).collect()
    }

    /// Where data and logs are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.signal(nix::sys::signal::Signal::SIGTERM);
        }
        let began = Instant::now();
        for node in &mut self.nodes {
            while node.running() && began.elapsed() < STOP_WITHIN {
                std::thread::sleep(LOOK_EVERY);
            }
            if node.running() {
                eprintln!("node {} did not stop, killing it", node.id);
                let _ = node.child.kill();
                let _ = node.child.wait();
            }
        }
        if !self.keep
            && let Err(error) = std::fs::remove_dir_all(&self.dir)
        {
            eprintln!("{} is left behind: {error}", self.dir.display());
        }
    }
}

fn launch(
    program: &Path,
    dir: &Path,
    id: &str,
    [listen, bulk, http]: [u16; 3],
    peers: &str,
    more: &[&str],
) -> Result<Node, NodeError> {
    let home = dir.join(id);
    let log = dir.join(format!("{id}.log"));
    let at = |path: &Path, error| NodeError::Directory {
        path: path.to_owned(),
        error,
    };
    std::fs::create_dir_all(&home).map_err(|error| at(&home, error))?;
    let out = File::create(&log).map_err(|error| at(&log, error))?;
    let err = out.try_clone().map_err(|error| at(&log, error))?;
    let child = Command::new(program)
        .args(["serve", "--node-id", id, "--cpus", "none", "--shards", "1"])
        .arg("--data-dir")
        .arg(&home)
        .args(["--listen", &format!("127.0.0.1:{listen}")])
        .args(["--bulk", &format!("127.0.0.1:{bulk}")])
        .args(["--http", &format!("127.0.0.1:{http}")])
        .args(["--peers", peers])
        .args(more)
        // A group of their own: ctrl-c in the terminal reaches the benchmark, which ends them.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .spawn()
        .map_err(|error| NodeError::Start {
            program: program.to_owned(),
            error,
        })?;
    Ok(Node {
        id: id.to_owned(),
        child,
        listen: format!("127.0.0.1:{listen}"),
        http: format!("127.0.0.1:{http}"),
        log,
    })
}

impl Node {
    fn running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn signal(&mut self, signal: nix::sys::signal::Signal) {
        if self.running() {
            let pid = i32::try_from(self.child.id()).expect("a pid fits");
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
        }
    }

    fn wait_ready(&mut self) -> Result<(), NodeError> {
        let began = Instant::now();
        loop {
            let why = match ready(&self.http) {
                Ok(true) => return Ok(()),
                Ok(false) => "it says so itself".to_owned(),
                Err(error) => error.to_string(),
            };
            if !self.running() || began.elapsed() >= READY_WITHIN {
                return Err(NodeError::NotReady {
                    id: self.id.clone(),
                    why,
                    log: self.log.clone(),
                });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Asks the admin port whether the node is ready.
fn ready(http: &str) -> std::io::Result<bool> {
    use std::io::{Read, Write};
    let addr = http.parse().map_err(std::io::Error::other)?;
    let mut stream = std::net::TcpStream::connect_timeout(&addr, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    write!(stream, "GET /readyz HTTP/1.0\r\nHost: {http}\r\n\r\n")?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    Ok(&head[9..] == b"200")
}
