//! The connection of a client command to the cluster.
//!
//! What this file keeps true: an address at which nobody listens is told at once; after that the
//! client goes from node to node for questions and leaves a change with an unknown outcome alone.

use super::args::GlobalArgs;
use super::error::{CliError, CliResult};
use narad_wire::client::{Client, ClientOptions};
use narad_wire::error::WireError;
use narad_wire::runtime::Glommio;
use std::ops::Deref;
use std::time::Duration;

/// What a client command works with: the client, and how to print.
pub struct Session {
    client: Client,
    /// Machine-readable output is wanted.
    pub json: bool,
}

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Session {
    /// Connects to the first server that can be reached.
    ///
    /// # Errors
    /// [`CliError`] when none can be, or an address makes no sense.
    pub async fn open(global: &GlobalArgs) -> CliResult<Self> {
        for server in &global.server {
            check_address(server)?;
        }
        let options = ClientOptions {
            deadline: Duration::from_secs(global.timeout),
            ..ClientOptions::new(global.server.clone())
        };
        let client = Client::with(Glommio, options);
        let mut last: Option<WireError> = None;
        for server in &global.server {
            match client.pool().node(server).await {
                Ok(_) => {
                    last = None;
                    break;
                }
                Err(error) => last = Some(error),
            }
        }
        if let Some(error) = last {
            return Err(unreachable(&global.server, error));
        }
        Ok(Self {
            client,
            json: global.json,
        })
    }
}

/// Refuses what can never be connected to.
fn check_address(server: &str) -> CliResult {
    let port = server
        .rsplit_once(':')
        .map(|(host, port)| (host, port.parse::<u16>()));
    match port {
        Some((host, Ok(port))) if !host.is_empty() && port > 0 => Ok(()),
        _ => Err(CliError::usage(
            format!("'{server}' is not HOST:PORT"),
            "name a node's --listen address, as in --server 10.0.0.1:7420",
        )),
    }
}

fn unreachable(servers: &[String], error: WireError) -> CliError {
    let error = CliError::from(error);
    if servers.len() < 2 {
        return error;
    }
    CliError {
        message: format!(
            "none of {} can be reached; the last: {}",
            servers.join(", "),
            error.message
        ),
        ..error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_before_anything_else() {
        for right in ["127.0.0.1:7420", "[::1]:7420", "node-1.example:80"] {
            assert!(check_address(right).is_ok(), "{right}");
        }
        for wrong in [
            "",
            "7420",
            "host:",
            ":7420",
            "host:99999",
            "host:0",
            "host:x",
        ] {
            assert!(check_address(wrong).is_err(), "{wrong}");
        }
    }
}
