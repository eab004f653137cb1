//! Real nodes as processes, for tests of the program.
//!
//! What this file keeps true: data lies on the disk that the build is on; every process that a test
//! starts is ended when the test ends, also when it fails; commands get no terminal but
//! one that a test has made.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of it"
)]

use std::fs::File;
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up; far beyond what a busy machine needs.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A directory of its own for a test, removed when dropped.
pub struct Dir(PathBuf);

impl Dir {
    /// Makes one.
    pub fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{name}-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a directory for the test");
        Self(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("left for a look: {}", self.0.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// Ports that are free now and differ.
pub fn free_ports<const N: usize>() -> [u16; N] {
    let probes: [TcpListener; N] =
        std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    std::array::from_fn(|at| probes[at].local_addr().expect("an address").port())
}

/// How a node is started.
#[derive(Clone)]
pub struct NodeSpec {
    /// Node id.
    pub id: String,
    /// Data directory.
    pub dir: PathBuf,
    /// listen, bulk, http.
    pub ports: [u16; 3],
    /// `--peers …` or `--join …` and whatever else.
    pub more: Vec<String>,
}

impl NodeSpec {
    /// `host:port` of its listener.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    /// The command that runs it in the foreground.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narad"));
        command
            .args([
                "serve",
                "--node-id",
                &self.id,
                "--cpus",
                "none",
                "--shards",
                "1",
            ])
            .arg("--data-dir")
            .arg(&self.dir)
            .args(["--listen", &self.addr()])
            .args(["--bulk", &format!("127.0.0.1:{}", self.ports[1])])
            .args(["--http", &format!("127.0.0.1:{}", self.ports[2])])
            .args(&self.more)
            .stdin(Stdio::null());
        command
    }

    /// Starts it; its log goes to `<dir>.log`.
    pub fn start(&self) -> Node {
        let log = self.dir.with_extension("log");
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log file");
        let child = self
            .command()
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file)
            .spawn()
            .expect("the node starts");
        Node {
            spec: self.clone(),
            child,
            log,
        }
    }
}

/// A running node.
pub struct Node {
    /// How it was started.
    pub spec: NodeSpec,
    child: Child,
    log: PathBuf,
}

impl Node {
    /// Waits until its admin port says that it is ready.
    pub fn wait_ready(&mut self) {
        let http = format!("127.0.0.1:{}", self.spec.ports[2]);
        let began = Instant::now();
        while !ready(&http) {
            let ended = self.child.try_wait().expect("its state");
            if ended.is_some() || began.elapsed() > PATIENCE {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                panic!(
                    "node {} is not ready ({ended:?}); its log:\n{log}",
                    self.spec.id
                );
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("collected");
    }

    /// SIGTERM, and whether it ended with 0.
    pub fn stop(mut self) -> bool {
        signal(&self.child, nix::sys::signal::Signal::SIGTERM);
        self.child.wait().expect("collected").success()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(log) = std::fs::read_to_string(&self.log)
        {
            let from = log.len().saturating_sub(4_000);
            let from = (from..log.len())
                .find(|at| log.is_char_boundary(*at))
                .unwrap_or(0);
            eprintln!("--- log of {}\n{}", self.spec.id, &log[from..]);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a child of ours.
pub fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    let pid = i32::try_from(child.id()).expect("a pid");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("signalled");
}

fn ready(http: &str) -> bool {
    use std::io::Read;
    let Ok(mut stream) = std::net::TcpStream::connect(http) else {
        return false;
    };
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    let mut head = [0; 12];
    write!(stream, "GET /readyz HTTP/1.0\r\nHost: {http}\r\n\r\n").is_ok()
        && stream.read_exact(&mut head).is_ok()
        && &head[9..] == b"200"
}

/// Founding members `n1` .. `nN`, ready.
pub fn founding(dir: &Dir, count: usize) -> Vec<Node> {
    founding_with(dir, count, &[])
}

/// Founding members with further arguments for each.
pub fn founding_with(dir: &Dir, count: usize, more: &[&str]) -> Vec<Node> {
    let ports: Vec<[u16; 3]> = (0..count).map(|_| free_ports()).collect();
    let peers: Vec<String> = (0..count)
        .map(|at| format!("n{}=127.0.0.1:{}", at + 1, ports[at][0]))
        .collect();
    let mut nodes: Vec<Node> = (0..count)
        .map(|at| {
            let mut args = vec!["--peers".to_owned(), peers.join(",")];
            args.extend(more.iter().map(|arg| (*arg).to_owned()));
            let id = format!("n{}", at + 1);
            NodeSpec {
                dir: dir.path().join(&id),
                id,
                ports: ports[at],
                more: args,
            }
            .start()
        })
        .collect();
    for node in &mut nodes {
        node.wait_ready();
    }
    nodes
}

/// A `narad` client command.
pub fn narad(server: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narad"));
    command
        .args(args)
        .env("NARAD_SERVER", server)
        .stdin(Stdio::null());
    command
}

/// Runs a client command to its end.
pub fn run(server: &str, args: &[&str]) -> Output {
    narad(server, args).output().expect("narad runs")
}

/// Runs a client command that must succeed; its standard output.
pub fn ok(server: &str, args: &[&str]) -> String {
    let output = run(server, args);
    assert!(
        output.status.success(),
        "narad {args:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// Runs a client command that must fail with this exit code; its standard error.
pub fn fails(server: &str, code: i32, args: &[&str]) -> String {
    let output = run(server, args);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "narad {args:?}: {error}");
    assert!(
        output.stdout.is_empty(),
        "an error leaves standard output alone"
    );
    error
}

/// Produces these lines from standard input.
pub fn produce(server: &str, topic: &str, lines: &str) {
    let mut child = narad(server, &["produce", topic])
        .stdin(Stdio::piped())
        .spawn()
        .expect("narad runs");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(lines.as_bytes()).expect("written");
    drop(input);
    assert!(child.wait().expect("ends").success());
}

/// A window of so many rows and columns: what a person sees of it, and what a command writes to.
pub fn window(rows: u16, columns: u16) -> (File, File) {
    let size = nix::libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    let (mut seen, mut inner) = (-1, -1);
    // SAFETY: both descriptors are written before they are used, name and modes may be null.
    let made = unsafe {
        nix::libc::openpty(
            &raw mut seen,
            &raw mut inner,
            std::ptr::null_mut(),
            std::ptr::null(),
            &raw const size,
        )
    };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call has made both descriptors, and nobody else has them.
    unsafe { (File::from_raw_fd(seen), File::from_raw_fd(inner)) }
}
