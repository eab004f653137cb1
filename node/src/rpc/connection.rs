//! The listener of one shard and the connections on it.
//!
//! What this file keeps true: the number of connections is bounded; each has its own bounds on
//! calls; and the node stops accepting as soon as it is told to stop.

use crate::messages::ControlRequest;
use crate::rpc::gate::Gate;
use crate::rpc::node::NodeServer;
use crate::shard::limits::CONNECTIONS_MAX;
use crate::shard::shard::Shard;
use crate::shard::task;
use glommio::net::{TcpListener, TcpStream};
use narad_schema::client_capnp;
use narad_wire::rpc::{Door, Line};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Pause after an accept that failed (descriptors are used up), in ms.
const ACCEPT_PAUSE_MS: u64 = 50;

/// Counts a connection as long as it lives.
struct Counted(Rc<Shard>);

impl Counted {
    fn new(shard: Rc<Shard>) -> Self {
        shard.ctx.metrics.connections.inc();
        Self(shard)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.ctx.metrics.connections.dec();
    }
}

/// Gives a connection to the control core.
async fn hand_on(shard: &Rc<Shard>, stream: &TcpStream, permit: OwnedSemaphorePermit) {
    // SAFETY: the descriptor belongs to `stream`, which is borrowed for longer than `fd` is used.
    let fd = unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) };
    // A descriptor of its own: the stream's closes with the stream, on this executor.
    match fd.try_clone_to_owned() {
        Ok(socket) => {
            let request = ControlRequest::Connection { socket, permit };
            // A node that is stopping takes none: the peer sees the end of the connection.
            let _ = shard.ctx.control.send(request).await;
        }
        Err(error) => {
            tracing::warn!(%error, "a connection could not be handed to the control core")
        }
    }
}

/// Accepts connections until the node stops. The listener shares its port with the other shards';
/// the kernel spreads connections over them.
pub(crate) async fn listen(shard: Rc<Shard>, listener: TcpListener) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut stop = shard.ctx.stop.clone();
    let polls = Rc::default();
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else {
            return;
        };
        let accepted = futures::select_biased! {
            _ = futures::FutureExt::fuse(Box::pin(stop.wait_for(|stop| *stop))) => return,
            accepted = futures::FutureExt::fuse(Box::pin(listener.accept())) => accepted,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                glommio::timer::sleep(Duration::from_millis(ACCEPT_PAUSE_MS)).await;
                continue;
            }
        };
        let (shard, polls) = (shard.clone(), Rc::clone(&polls));
        task::spawn("a connection", async move {
            let mut stream = stream;
            match Door::hear(&mut stream).await {
                Ok(Door::Shard) => {}
                Ok(Door::Control) => {
                    hand_on(&shard, &stream, permit).await;
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection ended before it began");
                    return;
                }
            }
            let _permit = permit;
            let _counted = Counted::new(shard.clone());
            let line = Line::default();
            let bootstrap: client_capnp::node::Client = narad_wire::rpc::new_client(NodeServer {
                shard,
                gate: Gate::new(),
                line: line.clone(),
                polls,
            });
            if let Err(error) = narad_wire::rpc::serve(stream, bootstrap, line).await {
                tracing::debug!(%error, "a connection ended");
            }
        });
    }
}
