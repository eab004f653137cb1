//! How the bench talks to a cluster: one client a server address, used in turn, so that every node
//! takes produce and consume calls for every partition.
//!
//! What this file keeps true: a server that cannot be reached is passed over, not waited for.

use crate::limits::CALL_DEADLINE;
use narad_core::ids::PartitionIndex;
use narad_wire::client::calls::{ConsumeRequest, Settle};
use narad_wire::client::{Client, ClientOptions, Delivery, Lease, Produced, Record};
use narad_wire::error::{WireError, WireFault};
use narad_wire::runtime::Glommio;
use std::cell::Cell;

/// The servers of a cluster.
pub struct Servers {
    /// One a server, that begins with its own server and goes on with the others.
    clients: Vec<Client>,
    addresses: Vec<String>,
    turn: Cell<usize>,
    preferred: Cell<Option<usize>>,
}

impl Servers {
    /// Clients for these addresses.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn new(addresses: &[String]) -> Self {
        assert!(
            !addresses.is_empty(),
            "the command line has a default server"
        );
        let clients = (0..addresses.len()).map(|first| {
            let mut order = addresses.to_vec();
            order.rotate_left(first);
            let options = ClientOptions {
                deadline: CALL_DEADLINE,
                ..ClientOptions::new(order)
            };
            Client::with(Glommio, options)
        });
        Self {
            clients: clients.collect(),
            addresses: addresses.to_vec(),
            turn: Cell::new(0),
            preferred: Cell::new(None),
        }
    }

    /// From now on the client of this server is used, instead of all in turn; of one that is not among
    /// them, or `None`: all in turn.
    pub fn prefer(&self, address: Option<&str>) {
        let found = self
            .addresses
            .iter()
            .position(|one| Some(one.as_str()) == address);
        self.preferred.set(found);
    }

    /// The preferred client, or the next one in turn.
    #[must_use]
    pub fn next(&self) -> &Client {
        if let Some(preferred) = self.preferred.get() {
            return &self.clients[preferred];
        }
        let turn = self.turn.get();
        self.turn.set(turn.wrapping_add(1));
        &self.clients[turn % self.clients.len()]
    }

    /// Produces a batch at the next node.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn produce(
        &self,
        topic: &str,
        records: &[Record],
        partition: Option<u32>,
    ) -> Result<Vec<Result<Produced, WireFault>>, WireError> {
        let partition = partition.map(PartitionIndex);
        self.next().produce_once(topic, records, partition).await
    }

    /// Leases records at the next node, from all owners.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn consume(
        &self,
        topic: &str,
        max_records: u32,
        max_bytes: u32,
        wait_ms: u32,
    ) -> Result<Vec<Delivery>, WireError> {
        let ask = ConsumeRequest {
            max_records,
            max_bytes,
            wait_ms,
            visibility_ms: 0,
            local_only: false,
        };
        self.next().consume_once(topic, ask).await
    }

    /// Acknowledges through the next node.
    ///
    /// # Errors
    /// [`WireError`].
    pub async fn ack(
        &self,
        topic: &str,
        leases: &[Lease],
    ) -> Result<Vec<Result<(), WireFault>>, WireError> {
        self.next().settle_once(topic, leases, Settle::Ack).await
    }
}
