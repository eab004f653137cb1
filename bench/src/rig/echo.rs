//! The echo: a process that answers a Cap'n Proto call with the bytes that came, and does nothing else. It answers a
//! produce as a node does, too, and looks at no record.
//!
//! There are two. The bare one is what anybody gets from the RPC library and glommio as they come: what a node is
//! compared with. The other one has a node's own connection code and rings: the most that a node could carry.
//!
//! What this file keeps true: the bare one has nothing of the project's in it, so that it does not become faster with a
//! node. The process ends when the run does, also when that is killed: it reads its standard input to the end.

use capnp::capability::Rc;
use capnp::message::ReaderOptions;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{RpcSystem, twoparty};
use futures::io::{AsyncReadExt as _, BufReader, BufWriter};
use glommio::net::TcpStream;
use narad_schema::client_capnp::node;
use narad_schema::peer_capnp::peer;
use narad_wire::rpc::Line;
use std::io::{self, BufRead, Read};
use std::process::{Child, Command, Stdio};

/// What both halves of a bare connection are buffered with.
const BARE_BUFFER_BYTES: usize = 64 << 10;

struct Echo;

impl node::Server for Echo {
    async fn peer(
        self: Rc<Self>,
        _: node::PeerParams,
        mut results: node::PeerResults,
    ) -> Result<(), capnp::Error> {
        results.get().set_peer(capnp_rpc::new_client(Echo));
        Ok(())
    }

    async fn produce(
        self: Rc<Self>,
        params: node::ProduceParams,
        mut results: node::ProduceResults,
    ) -> Result<(), capnp::Error> {
        let records = params.get()?.get_records()?.len();
        let mut answers = results.get().init_results(records);
        for at in 0..records {
            let mut committed = answers.reborrow().get(at).init_committed();
            committed.set_offset(at.into());
        }
        Ok(())
    }
}

impl peer::Server for Echo {
    async fn raft(
        self: Rc<Self>,
        params: peer::RaftParams,
        mut results: peer::RaftResults,
    ) -> Result<(), capnp::Error> {
        results.get().set_body(params.get()?.get_body()?);
        Ok(())
    }
}

/// Which connection code, and which rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EchoKind {
    /// The libraries' own.
    Bare,
    /// A node's.
    Own,
}

impl EchoKind {
    /// By the program's argument.
    #[must_use]
    pub fn of(bare: bool) -> Self {
        if bare { Self::Bare } else { Self::Own }
    }
}

/// Serves until standard input ends. Prints its address first. For the bare one `rings::make_as_asked` has to be called
/// before the executor is made.
///
/// # Errors
/// When it cannot listen.
pub async fn serve(kind: EchoKind) -> io::Result<()> {
    let listener = glommio::net::TcpListener::bind("127.0.0.1:0").map_err(io::Error::from)?;
    println!("{}", listener.local_addr().map_err(io::Error::from)?);
    std::thread::spawn(|| {
        let mut rest = Vec::new();
        let _ = io::stdin().read_to_end(&mut rest);
        std::process::exit(0);
    });
    loop {
        let stream = listener.accept().await.map_err(io::Error::from)?;
        glommio::spawn_local(async move {
            let served = match kind {
                EchoKind::Bare => serve_bare(stream).await.map_err(|e| e.to_string()),
                EchoKind::Own => {
                    let bootstrap = capnp_rpc::new_client(Echo);
                    let served = narad_wire::rpc::serve(stream, bootstrap, Line::default());
                    served.await.map_err(|e| e.to_string())
                }
            };
            if let Err(error) = served {
                eprintln!("echo: a connection ended: {error}");
            }
        })
        .detach();
    }
}

/// As the RPC library's own examples serve a connection, with its halves buffered as it recommends.
async fn serve_bare(stream: TcpStream) -> capnp::Result<()> {
    let failed = |error: glommio::GlommioError<()>| capnp::Error::failed(error.to_string());
    stream.set_nodelay(true).map_err(failed)?;
    let (read, write) = stream.split();
    let network = twoparty::VatNetwork::new(
        BufReader::with_capacity(BARE_BUFFER_BYTES, read),
        BufWriter::with_capacity(BARE_BUFFER_BYTES, write),
        Side::Server,
        ReaderOptions::new(),
    );
    let bootstrap: node::Client = capnp_rpc::new_client(Echo);
    RpcSystem::new(Box::new(network), Some(bootstrap.client)).await
}

/// An echo process of this run; ended when dropped.
#[derive(Debug)]
pub struct EchoProcess {
    child: Child,
    addr: String,
}

impl EchoProcess {
    /// Starts this program as an echo.
    ///
    /// # Errors
    /// The system's.
    pub fn start(kind: EchoKind) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("echo")
            .args((kind == EchoKind::Bare).then_some("--bare"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().expect("it was asked for");
        let mut addr = String::new();
        let read = io::BufReader::new(out).read_line(&mut addr);
        let process = Self {
            child,
            addr: addr.trim().to_owned(),
        };
        read?;
        if process.addr.is_empty() {
            return Err(io::Error::other("it has ended at once"));
        }
        Ok(process)
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for EchoProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
