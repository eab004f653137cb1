//! The bare echo: a process that answers a Cap'n Proto call with the bytes that came, and does nothing else,
//! on the same executor and over the same connection code as a node. It answers a produce as a node does, too, and
//! looks at no record: what that carries is the most that any node could pass on.
//!
//! What this file keeps true: what a node costs beyond this is what it does with records. The process ends
//! when the run does, also when that is killed: it reads its standard input to the end.

use capnp::capability::Rc;
use narad_schema::client_capnp::node;
use narad_schema::peer_capnp::peer;
use narad_wire::rpc::Line;
use std::io::{self, BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

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

/// Serves until standard input ends. Prints its address first.
///
/// # Errors
/// When it cannot listen.
pub async fn serve() -> io::Result<()> {
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
            let bootstrap = capnp_rpc::new_client(Echo);
            if let Err(error) = narad_wire::rpc::serve(stream, bootstrap, Line::default()).await {
                eprintln!("echo: a connection ended: {error}");
            }
        })
        .detach();
    }
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
    pub fn start() -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("echo")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = child.stdout.take().expect("it was asked for");
        let mut addr = String::new();
        let read = BufReader::new(out).read_line(&mut addr);
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
