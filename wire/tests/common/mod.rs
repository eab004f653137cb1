//! A small cluster for the client's tests: real listeners, real connections, the real interface;
//! one topic whose partitions are plain vectors that the tests move between nodes.
//!
//! What this file keeps true: each record is counted where it is stored, so that a test can tell
//! loss from repetition; nodes can be cut off, stalled and made to refuse.

#![allow(dead_code, unreachable_pub)]

mod node;

use futures::future::LocalBoxFuture;
use glommio::net::TcpListener;
use narad_wire::client::{Client, ClientOptions};
use narad_wire::convert::Record;
use narad_wire::error::ErrorCode;
use narad_wire::runtime::{Glommio, Runtime};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

pub use node::TestNode;

// As `build.rs` asks the linker to.
narad_wire::runtime_hooks!();

pub const TOPIC: &str = "orders";
pub const TOPIC_ID: u64 = 17;

/// One partition's log, wherever it is.
#[derive(Default)]
pub struct Partition {
    pub owner: usize,
    pub epoch: u64,
    pub log: Vec<Record>,
    pub acked: Vec<bool>,
    /// How many times each record went out.
    pub delivered: Vec<u32>,
    /// Offset -> nonce of the lease that stands, and when it ends by the cluster's clock.
    pub leases: HashMap<u64, (u64, Duration)>,
    /// Offsets to deliver, in order.
    pub ready: VecDeque<u64>,
    pub frozen: bool,
}

/// How a node misbehaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Fine,
    /// Every produce is refused with this.
    Refuse(Refusal),
    /// Stores what is produced and never answers.
    Swallow,
    /// Answers nothing at all.
    Stall,
}

/// Refusals that tests ask for; the codes as in the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal(pub u16);

impl Refusal {
    pub fn code(self) -> ErrorCode {
        ErrorCode::try_from(self.0).unwrap()
    }
}

#[derive(Default)]
pub struct Cluster {
    pub addrs: RefCell<Vec<String>>,
    pub partitions: RefCell<Vec<Partition>>,
    pub moods: RefCell<Vec<Mood>>,
    pub nonces: Cell<u64>,
    /// What leases are timed by: it stands still unless a test sets it.
    pub clock: Cell<Duration>,
    /// Calls by (node, method).
    pub calls: RefCell<HashMap<(usize, &'static str), u64>>,
    pub throttle: Cell<u64>,
    pub connections: Cell<u64>,
    tasks: RefCell<Vec<Vec<glommio::Task<()>>>>,
}

impl Cluster {
    /// A cluster of `nodes` whose partitions are spread over them. Call it on a glommio executor.
    pub fn start(nodes: usize, partitions: usize) -> Rc<Self> {
        let cluster = Rc::new(Self::default());
        for index in 0..partitions {
            cluster.partitions.borrow_mut().push(Partition {
                owner: index % nodes,
                epoch: 1,
                ..Partition::default()
            });
        }
        for _ in 0..nodes {
            cluster.addrs.borrow_mut().push(String::new());
            cluster.moods.borrow_mut().push(Mood::Fine);
            cluster.tasks.borrow_mut().push(Vec::new());
        }
        for index in 0..nodes {
            cluster.revive(index);
        }
        cluster
    }

    pub fn addr(&self, node: usize) -> String {
        self.addrs.borrow()[node].clone()
    }

    /// Starts a node's listener, at its old address when it had one.
    pub fn revive(self: &Rc<Self>, index: usize) {
        let old = self.addr(index);
        let bind = if old.is_empty() { "127.0.0.1:0" } else { &old };
        let listener = TcpListener::bind(bind).unwrap();
        self.addrs.borrow_mut()[index] = listener.local_addr().unwrap().to_string();
        let cluster = Rc::downgrade(self);
        let accept = glommio::spawn_local(async move {
            while let Ok(stream) = listener.accept().await {
                let Some(cluster) = cluster.upgrade() else {
                    return;
                };
                cluster.connections.set(cluster.connections.get() + 1);
                let node = TestNode::client(&cluster, index);
                let serve = glommio::spawn_local(async move {
                    let _ = narad_wire::rpc::serve(stream, node, narad_wire::rpc::Line::default())
                        .await;
                });
                cluster.tasks.borrow_mut()[index].push(serve);
            }
        });
        self.tasks.borrow_mut()[index].push(accept);
    }

    /// Cuts a node off: its listener and every connection end.
    pub async fn kill(&self, index: usize) {
        let tasks = std::mem::take(&mut self.tasks.borrow_mut()[index]);
        for task in tasks {
            task.cancel().await;
        }
    }

    /// Ends the connections and leaves the listener: what a network hiccup does.
    pub async fn cut(&self, index: usize) {
        let tasks: Vec<_> = self.tasks.borrow_mut()[index].drain(1..).collect();
        for task in tasks {
            task.cancel().await;
        }
    }

    pub fn mood(&self, index: usize, mood: Mood) {
        self.moods.borrow_mut()[index] = mood;
    }

    /// Moves a partition: the epoch counts up and leases stay behind, as in a real move.
    pub fn move_to(&self, partition: usize, node: usize) {
        let mut partitions = self.partitions.borrow_mut();
        let partition = &mut partitions[partition];
        partition.owner = node;
        partition.epoch += 1;
        let mut back: Vec<u64> = partition.leases.drain().map(|(offset, _)| offset).collect();
        back.sort_unstable();
        for offset in back.into_iter().rev() {
            partition.ready.push_front(offset);
        }
    }

    pub fn calls(&self, node: usize, method: &'static str) -> u64 {
        let calls = self.calls.borrow();
        calls.get(&(node, method)).copied().unwrap_or(0)
    }

    /// Every value stored, with how many times.
    pub fn stored(&self) -> HashMap<Vec<u8>, u64> {
        let mut out = HashMap::new();
        for partition in self.partitions.borrow().iter() {
            for record in &partition.log {
                *out.entry(record.value.clone()).or_default() += 1;
            }
        }
        out
    }

    /// Records that nobody has acked.
    pub fn unacked(&self) -> usize {
        let partitions = self.partitions.borrow();
        let acked = partitions.iter().flat_map(|p| p.acked.iter());
        acked.filter(|acked| !**acked).count()
    }

    pub fn put(&self, partition: usize, record: Record) -> u64 {
        let mut partitions = self.partitions.borrow_mut();
        let partition = &mut partitions[partition];
        let offset = partition.log.len() as u64;
        partition.log.push(record);
        partition.acked.push(false);
        partition.delivered.push(0);
        partition.ready.push_back(offset);
        offset
    }
}

/// Glommio, with the cluster's clock for leases.
#[derive(Clone)]
pub struct OnClock {
    began: Instant,
    cluster: Rc<Cluster>,
}

impl OnClock {
    pub fn new(cluster: &Rc<Cluster>) -> Self {
        Self {
            began: Instant::now(),
            cluster: cluster.clone(),
        }
    }

    /// Time passes.
    pub fn pass(&self, time: Duration) {
        self.cluster.clock.set(self.cluster.clock.get() + time);
    }
}

impl Runtime for OnClock {
    type Stream = narad_wire::runtime::Socket;

    fn connect(
        &self,
        addr: &str,
        deadline: Duration,
    ) -> LocalBoxFuture<'static, std::io::Result<Self::Stream>> {
        Glommio.connect(addr, deadline)
    }

    fn sleep(&self, time: Duration) -> LocalBoxFuture<'static, ()> {
        Glommio.sleep(time)
    }

    fn spawn(&self, task: LocalBoxFuture<'static, ()>) {
        Glommio.spawn(task);
    }

    fn now(&self) -> Instant {
        self.began + self.cluster.clock.get()
    }
}

/// Runs a test's future on a glommio executor of its own.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    glommio::LocalExecutor::default().run(future)
}

pub fn value(n: usize) -> Vec<u8> {
    format!("record-{n}").into_bytes()
}

/// Waits until something holds; ends the test when it does not within a generous time.
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        glommio::timer::sleep(std::time::Duration::from_millis(5)).await;
    }
    panic!("{what} never came");
}

/// A client of some of the nodes.
pub fn client(cluster: &Cluster, servers: &[usize]) -> Client {
    client_on(Glommio, cluster, servers)
}

pub fn client_on<R: Runtime>(runtime: R, cluster: &Cluster, servers: &[usize]) -> Client<R> {
    let servers = servers.iter().map(|n| cluster.addr(*n)).collect();
    let options = ClientOptions {
        deadline: Duration::from_secs(20),
        attempt: Duration::from_millis(500),
        ..ClientOptions::new(servers)
    };
    Client::with(runtime, options)
}
