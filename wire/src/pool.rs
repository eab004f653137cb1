//! Connections to nodes, one a node address, shared by everybody on an executor.
//!
//! What this file keeps true: at most one connection and one attempt at a time exist an address;
//! callers that come while an attempt runs share it; after a failed attempt the next one waits
//! (bounded, growing, jittered) and callers until then get the error of the last one at once; a
//! connection that has ended is never handed out again.

mod slots;

pub use slots::{NodePool, PoolOptions};

use crate::convert::check;
use crate::error::{ErrorCode, WireError, WireFault};
use crate::rpc::Door;
use crate::runtime::{Glommio, Runtime, within};
use narad_core::ids::{ClusterId, NodeId, NodeIncarnation};
use narad_schema::client_capnp::node;
use narad_schema::peer_capnp::peer;
use std::rc::Rc;

/// Connections of one node to its peers. One an executor; clones share.
pub struct PeerPool<R: Runtime = Glommio> {
    nodes: NodePool<R>,
    me: Rc<(NodeId, NodeIncarnation)>,
    cluster: Rc<dyn Fn() -> Option<ClusterId>>,
}

impl<R: Runtime> Clone for PeerPool<R> {
    fn clone(&self) -> Self {
        Self {
            nodes: self.nodes.clone(),
            me: self.me.clone(),
            cluster: self.cluster.clone(),
        }
    }
}

impl PeerPool<Glommio> {
    /// A pool for the glommio executor of this thread. Connections run in the task queue of
    /// whoever asks for them first: ask from a latency-sensitive one.
    #[must_use]
    pub fn new(my_id: NodeId, my_incarnation: NodeIncarnation) -> Self {
        Self::with(Glommio, PoolOptions::default(), my_id, my_incarnation)
    }

    /// As [`Self::new`], for what the control cores of the nodes answer, past their shards.
    #[must_use]
    pub fn of_control(my_id: NodeId, my_incarnation: NodeIncarnation) -> Self {
        let options = PoolOptions {
            door: Door::Control,
            ..PoolOptions::default()
        };
        Self::with(Glommio, options, my_id, my_incarnation)
    }
}

impl<R: Runtime> PeerPool<R> {
    /// A pool for another executor or with other times.
    #[must_use]
    pub fn with(
        runtime: R,
        options: PoolOptions,
        my_id: NodeId,
        my_incarnation: NodeIncarnation,
    ) -> Self {
        Self {
            nodes: NodePool::new(runtime, options),
            me: Rc::new((my_id, my_incarnation)),
            cluster: Rc::new(|| None),
        }
    }

    /// Tells the nodes that it connects to from now on of which cluster this one is, as far as it knows by
    /// then: a node of another cluster that has got the address refuses.
    #[must_use]
    pub fn in_cluster(self, cluster: impl Fn() -> Option<ClusterId> + 'static) -> Self {
        Self {
            cluster: Rc::new(cluster),
            ..self
        }
    }

    /// The peer interface of node `node` at `addr`. Refused when another node answers there: an
    /// address that has changed hands must not be spoken to as if it were still the old one.
    ///
    /// # Errors
    /// [`WireError::Connect`] when there is no connection (nothing was sent; it says when the next
    /// attempt makes sense); [`WireError::Fault`] when the node refuses us.
    pub async fn peer(&self, node: &NodeId, addr: &str) -> Result<peer::Client, WireError> {
        let conn = self.nodes.connection(addr).await?;
        if let Some(info) = conn.info()
            && info.id != node.0
        {
            self.nodes.forget(addr, &conn);
            return Err(WireError::Connect {
                addr: addr.to_owned(),
                message: format!("node {} answers there, expected {node}", info.id),
                retry_after_ms: 0,
            });
        }
        if let Some(peer) = conn.cached_peer() {
            return Ok(peer);
        }
        let mut request = conn.node().peer_request();
        request.get().set_node(&self.me.0.0);
        request.get().set_incarnation(self.me.1.0);
        request
            .get()
            .set_cluster((self.cluster)().map_or(0, |id| id.0));
        let runtime = self.nodes.runtime();
        let deadline = self.nodes.options().connect_deadline;
        let response = within(runtime, deadline, request.send().promise).await;
        let response = match response {
            Ok(response) => response,
            Err(error) => {
                // Nothing but a question was asked, so nothing can be half done.
                self.failed(addr);
                return Err(WireError::Connect {
                    addr: addr.to_owned(),
                    message: error.to_string(),
                    retry_after_ms: 0,
                });
            }
        };
        let results = response.get()?;
        check(results.has_error(), results.get_error())?;
        if !results.has_peer() {
            return Err(WireError::Fault(WireFault::new(
                ErrorCode::Unsupported,
                format!("the node at {addr} offers no peer interface"),
            )));
        }
        let peer = results.get_peer()?;
        conn.cache_peer(peer.clone());
        Ok(peer)
    }

    /// The client interface of the node at `addr`, whoever that is.
    ///
    /// # Errors
    /// [`WireError::Connect`] when there is no connection.
    pub async fn node(&self, addr: &str) -> Result<node::Client, WireError> {
        self.nodes.node(addr).await
    }

    /// A caller saw that the connection is of no use ([`WireError::connection_lost`]): the next
    /// caller gets a new one.
    pub fn failed(&self, addr: &str) {
        self.nodes.failed(addr);
    }

    /// Ends every connection to an address that `keep` does not name, so that removed members do
    /// not linger.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.nodes.retain(keep);
    }
}
