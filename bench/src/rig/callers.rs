//! What is called: the echo, and a node's produce.
//!
//! What this file keeps true: connections are made before anything is measured; an answer counts only when
//! it says that the call did what it was for.

use crate::limits::CALL_DEADLINE;
use narad_schema::peer_capnp::peer;
use narad_wire::client::Record;
use narad_wire::client::calls::{self, ConsumeRequest};
use narad_wire::error::WireError;
use narad_wire::rpc::{Link, call_on, connect_link};
use narad_wire::runtime::Glommio;
use std::future::Future;
use std::time::Duration;

/// How long a connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// How consumers that are measured ask: many records at once, parking shortly where there are none.
pub(crate) const CONSUME_ROUND: ConsumeRequest = ConsumeRequest {
    max_records: 1_000,
    max_bytes: 2 << 20,
    wait_ms: 200,
    visibility_ms: 0,
    local_only: false,
};

/// Something that is called over several connections.
pub trait Caller {
    /// One call, over the connection of this number modulo how many there are; how many records it was for.
    fn call(&self, at: usize) -> impl Future<Output = Result<u64, WireError>>;
    /// Payload bytes of one record.
    fn record_bytes(&self) -> u64;
}

async fn links(addrs: &[String], count: usize) -> Result<Vec<Link>, WireError> {
    let mut links = Vec::with_capacity(count);
    for addr in addrs.iter().cycle().take(count) {
        links.push(connect_link(&Glommio, addr, CONNECT_WITHIN).await?);
    }
    Ok(links)
}

/// Calls the echo.
pub struct EchoCaller {
    peers: Vec<peer::Client>,
    payload: Vec<u8>,
    _links: Vec<Link>,
}

impl EchoCaller {
    /// Over so many connections, with so many bytes a call.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn connect(addr: &str, count: usize, bytes: usize) -> Result<Self, WireError> {
        let links = links(&[addr.to_owned()], count).await?;
        let mut peers = Vec::with_capacity(count);
        for link in &links {
            let request = link.node().peer_request();
            let sent = request.send();
            let peer = call_on(&Glommio, CALL_DEADLINE, sent, |r| Ok(r.get_peer()?)).await?;
            peers.push(peer);
        }
        Ok(Self {
            peers,
            payload: value(bytes),
            _links: links,
        })
    }
}

impl Caller for EchoCaller {
    async fn call(&self, at: usize) -> Result<u64, WireError> {
        let mut request = self.peers[at % self.peers.len()].raft_request();
        request.get().set_body(&self.payload);
        let len = self.payload.len();
        call_on(&Glommio, CALL_DEADLINE, request.send(), |r| {
            let back = r.get_body()?.len();
            if back == len {
                Ok(1)
            } else {
                Err(WireError::Protocol {
                    message: format!("{back} of {len} bytes came back"),
                })
            }
        })
        .await
    }

    fn record_bytes(&self) -> u64 {
        self.payload.len() as u64
    }
}

/// Produces to a topic.
pub struct ProduceCaller {
    links: Vec<Link>,
    topic: String,
    batch: Vec<Record>,
}

impl ProduceCaller {
    /// Over so many connections, spread over these nodes, with batches of this shape.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn connect(
        addrs: &[String],
        count: usize,
        topic: &str,
        (records, bytes): (usize, usize),
    ) -> Result<Self, WireError> {
        Ok(Self {
            links: links(addrs, count).await?,
            topic: topic.to_owned(),
            batch: vec![Record::new(value(bytes)); records],
        })
    }
}

impl Caller for ProduceCaller {
    async fn call(&self, at: usize) -> Result<u64, WireError> {
        let node = self.links[at % self.links.len()].node();
        let records = calls::refs(&self.batch);
        let results =
            calls::produce(&Glommio, node, CALL_DEADLINE, &self.topic, records, None).await?;
        let count = results.len() as u64;
        for result in results {
            result?;
        }
        Ok(count)
    }

    fn record_bytes(&self) -> u64 {
        self.batch.first().map_or(0, |record| record.bytes() as u64)
    }
}

/// Bytes that no disk takes for zeros.
fn value(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 % 251) as u8).collect()
}
