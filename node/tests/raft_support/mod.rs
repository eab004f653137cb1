//! A cluster of real Raft nodes on one executor: real directories on the disk of the build, messages handed over in
//! memory by a transport that can cut nodes off and checks the bound of every message.

// Each test file uses its part of this.
#![allow(dead_code)]

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use glommio::{LocalExecutorBuilder, Placement};
use narad::raft::limits::MAX_MESSAGE_BYTES;
use narad::raft::{
    BarrierError, Machine, MembershipView, ProposeError, RaftHandleError, RaftMessage,
    RaftMessageKind, RaftNode, RaftOptions, RaftPeer, RaftTransport, TransportError,
};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

// As `build.rs` asks the linker to.
narad_wire::runtime_hooks!();

/// A wait longer than this is a hang. No test measures against it.
pub(crate) const HANG: Duration = Duration::from_secs(90);

/// A fresh directory on the disk of the build, removed at the end.
pub(crate) struct Dir(pub(crate) PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Dir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let path = base.join(format!("{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a test on an executor of its own.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let executor = LocalExecutorBuilder::new(Placement::Unbound)
        .io_memory(256 << 10)
        .make()
        .unwrap();
    executor.run(test)
}

/// Waits until `check` holds.
pub(crate) async fn until(what: &str, mut check: impl FnMut() -> bool) {
    let start = Instant::now();
    while !check() {
        assert!(start.elapsed() < HANG, "still waiting: {what}");
        glommio::timer::sleep(Duration::from_millis(10)).await;
    }
}

/// What a proposal begins with that this machine does not understand.
pub(crate) const UNKNOWN: &[u8] = b"of the future";

/// Remembers every proposal with its index, in order.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) applied: Vec<(u64, Vec<u8>)>,
    pub(crate) members: MembershipView,
    /// Restored snapshots.
    pub(crate) restores: usize,
    /// What the last batch reached.
    pub(crate) published: u64,
}

impl Machine for Ledger {
    fn apply(&mut self, index: u64, term: u64, proposal: &[u8]) -> Result<Vec<u8>, String> {
        assert!(term > 0);
        if proposal.starts_with(UNKNOWN) {
            return Err("a proposal of a newer release".to_owned());
        }
        assert!(
            self.applied.last().is_none_or(|(last, _)| *last < index),
            "applied twice or out of order"
        );
        self.applied.push((index, proposal.to_vec()));
        Ok(self.applied.len().to_string().into_bytes())
    }
    fn membership_changed(&mut self, membership: &MembershipView) {
        self.members = membership.clone();
    }
    fn applied(&mut self, index: u64) {
        assert!(index >= self.published);
        self.published = index;
    }
    fn snapshot(&self) -> Vec<u8> {
        serde_json::to_vec(&self.applied).unwrap()
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), String> {
        self.applied = serde_json::from_slice(snapshot).map_err(|error| error.to_string())?;
        self.restores += 1;
        Ok(())
    }
}

/// The network between the nodes.
#[derive(Default)]
pub(crate) struct Net {
    nodes: RefCell<BTreeMap<String, RaftNode<Ledger>>>,
    cut: RefCell<BTreeSet<String>>,
    pub(crate) largest: Cell<usize>,
    pub(crate) chunks: Cell<usize>,
    pub(crate) read_indexes: Cell<usize>,
    /// Messages that were refused because they contradict what the receiver knows to be committed.
    pub(crate) unfit: Cell<usize>,
}

struct Link {
    from: String,
    net: Rc<Net>,
}

pub(crate) fn addr(id: &str) -> String {
    format!("{id}.test:1")
}

pub(crate) fn peer(id: &str) -> RaftPeer {
    RaftPeer { addr: addr(id) }
}

impl Net {
    fn reaches(&self, from: &str, to: &str) -> bool {
        let cut = self.cut.borrow();
        !cut.contains(from) && !cut.contains(to)
    }
}

impl RaftTransport for Link {
    fn call<'a>(
        &'a self,
        target: &'a str,
        to: &'a str,
        request: RaftMessage,
        _deadline: Duration,
    ) -> LocalBoxFuture<'a, Result<Vec<u8>, TransportError>> {
        async move {
            assert!(
                request.body.len() <= MAX_MESSAGE_BYTES,
                "{:?} of {} bytes",
                request.kind,
                request.body.len()
            );
            self.net
                .largest
                .set(self.net.largest.get().max(request.body.len()));
            match request.kind {
                RaftMessageKind::SnapshotChunk => self.net.chunks.set(self.net.chunks.get() + 1),
                RaftMessageKind::ReadIndex => {
                    self.net.read_indexes.set(self.net.read_indexes.get() + 1)
                }
                _ => {}
            }
            let node = self.net.nodes.borrow().get(to).cloned();
            let Some(node) = node.filter(|_| self.net.reaches(&self.from, target)) else {
                return Err(TransportError::Unreachable("cut off".to_owned()));
            };
            let answer = node.handle(request).await;
            if let Err(RaftHandleError::Unfit(_)) = &answer {
                self.net.unfit.set(self.net.unfit.get() + 1);
            }
            if !self.net.reaches(&self.from, target) {
                return Err(TransportError::Timeout);
            }
            answer.map_err(|error| TransportError::Remote(error.to_string()))
        }
        .boxed_local()
    }
}

/// Nodes with their directories under one.
pub(crate) struct Cluster {
    pub(crate) net: Rc<Net>,
    pub(crate) dir: Dir,
    pub(crate) snapshot_every: u64,
    pub(crate) keep_entries: u64,
}

impl Cluster {
    pub(crate) fn new(name: &str) -> Cluster {
        Cluster {
            net: Rc::default(),
            dir: Dir::new(name),
            snapshot_every: 100_000,
            keep_entries: 100_000,
        }
    }

    pub(crate) fn options(&self, id: &str) -> RaftOptions {
        RaftOptions {
            election_timeout_min_ms: 600,
            election_timeout_max_ms: 1_200,
            heartbeat_ms: 150,
            snapshot_every: self.snapshot_every,
            keep_entries: self.keep_entries,
            propose_timeout_ms: 4_000,
            barrier_timeout_ms: 2_000,
            ..RaftOptions::new(id, addr(id), self.dir.0.join(id).join("raft"))
        }
    }

    pub(crate) async fn start(&self, id: &str) -> RaftNode<Ledger> {
        let link = Rc::new(Link {
            from: id.to_owned(),
            net: self.net.clone(),
        });
        let node = RaftNode::start(self.options(id), Rc::default(), link)
            .await
            .unwrap();
        self.net.nodes.borrow_mut().insert(addr(id), node.clone());
        node
    }

    pub(crate) async fn stop(&self, node: RaftNode<Ledger>) {
        self.net.nodes.borrow_mut().remove(&addr(node.id()));
        node.shutdown().await;
    }

    /// Starts these nodes and lets every one of them found the cluster.
    pub(crate) async fn found(&self, ids: &[&str]) -> Vec<RaftNode<Ledger>> {
        let mut nodes = Vec::new();
        for id in ids {
            nodes.push(self.start(id).await);
        }
        for node in &nodes {
            node.initialize(ids.iter().map(|id| (id.to_string(), peer(id))).collect())
                .await
                .unwrap();
        }
        nodes
    }

    /// The running node with this id.
    pub(crate) fn net_node(&self, id: &str) -> RaftNode<Ledger> {
        self.net.nodes.borrow()[&addr(id)].clone()
    }

    pub(crate) fn cut(&self, id: &str) {
        self.net.cut.borrow_mut().insert(id.to_owned());
    }

    pub(crate) fn heal(&self) {
        self.net.cut.borrow_mut().clear();
    }
}

/// The node that leads and proves it with a majority.
pub(crate) async fn leader(nodes: &[RaftNode<Ledger>]) -> RaftNode<Ledger> {
    let start = Instant::now();
    loop {
        for node in nodes {
            if node.is_leader() && node.confirm_leadership().await.is_ok() {
                return node.clone();
            }
        }
        assert!(start.elapsed() < HANG, "no leader");
        glommio::timer::sleep(Duration::from_millis(20)).await;
    }
}

/// Proposes until some leader has applied it; fails on an unknown outcome.
pub(crate) async fn write(nodes: &[RaftNode<Ledger>], text: &str) -> u64 {
    let start = Instant::now();
    loop {
        let leader = leader(nodes).await;
        match leader.propose(text.as_bytes().to_vec()).await {
            Ok((index, _)) => return index,
            Err(ProposeError::NotLeader { .. }) => assert!(start.elapsed() < HANG),
            Err(error) => panic!("{text}: {error}"),
        }
    }
}

/// What a node has applied, as text.
pub(crate) fn texts(node: &RaftNode<Ledger>) -> Vec<String> {
    let machine = node.machine().borrow();
    machine
        .applied
        .iter()
        .map(|(_, bytes)| String::from_utf8(bytes.clone()).unwrap())
        .collect()
}

/// Waits until all nodes have applied the same, and returns it.
pub(crate) async fn converge(nodes: &[RaftNode<Ledger>]) -> Vec<String> {
    let index = leader(nodes).await.read_barrier().await.unwrap();
    for node in nodes {
        node.wait_applied(index, HANG).await.unwrap();
    }
    for node in nodes {
        let (ours, theirs) = (node.machine().borrow(), nodes[0].machine().borrow());
        let upto = |ledger: &Ledger| {
            ledger
                .applied
                .iter()
                .filter(|(at, _)| *at <= index)
                .cloned()
                .collect::<Vec<_>>()
        };
        assert_eq!(
            upto(&ours),
            upto(&theirs),
            "{} and {}",
            node.id(),
            nodes[0].id()
        );
    }
    texts(&nodes[0])
}

/// A barrier, retried while there is no leader.
pub(crate) async fn barrier(node: &RaftNode<Ledger>) -> u64 {
    match node.barrier(HANG).await {
        Ok(index) => index,
        Err(error @ (BarrierError::NotLeader { .. } | BarrierError::Unconfirmed(_))) => {
            panic!("no leader: {error}")
        }
        Err(error) => panic!("{error}"),
    }
}
