//! The cluster that a run measures: one of its own, or one that runs already.
//!
//! What this file keeps true: topics that a run makes are its own and are deleted; a cluster of its own is
//! ended with the run.

use super::cpu::Cpu;
use super::{RigError, call};
use crate::node::Cluster;
use narad_wire::client::{Client, ClientOptions, TopicSettingsView};
use narad_wire::error::ErrorCode;
use narad_wire::runtime::Glommio;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long founders may take to register, so that a topic is spread over all of them.
const FOUND_WITHIN: Duration = Duration::from_secs(30);

/// Where the cluster comes from.
#[derive(Clone, Debug, clap::Args)]
pub struct ClusterArgs {
    /// The narad program (default: the one beside this program)
    #[arg(long, value_name = "PATH")]
    pub narad: Option<PathBuf>,
    /// Where data goes; a directory on a real disk
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    pub dir: PathBuf,
    /// Measure these nodes instead of nodes of its own, HOST:PORT[,HOST:PORT…]
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,…")]
    pub server: Vec<String>,
    /// Leave data and logs of the nodes in place
    #[arg(long)]
    pub keep: bool,
}

/// A cluster that answers.
pub struct Measured {
    client: Client,
    servers: Vec<String>,
    cpu: Cpu,
    own: Option<Cluster>,
}

impl Measured {
    /// Starts `count` nodes, or uses those that were named.
    ///
    /// # Errors
    /// [`RigError`].
    pub async fn start(args: &ClusterArgs, count: usize) -> Result<Self, RigError> {
        if !args.server.is_empty() {
            return Ok(Self::over(args.server.clone(), Cpu::default(), None));
        }
        let program = args.narad.clone().unwrap_or_else(|| {
            let own = std::env::current_exe().unwrap_or_default();
            own.with_file_name("narad")
        });
        let mut own = Cluster::start(&program, &args.dir, count)?;
        own.keep = args.keep;
        let measured = Self::over(own.servers(), Cpu::of(own.pids()), Some(own));
        let until = Instant::now() + FOUND_WITHIN;
        loop {
            let members = call("asking for the members", measured.client.members().await)?;
            if members.members.len() >= count || Instant::now() >= until {
                return Ok(measured);
            }
            glommio::timer::sleep(Duration::from_millis(100)).await;
        }
    }

    fn over(servers: Vec<String>, cpu: Cpu, own: Option<Cluster>) -> Self {
        Self {
            client: Client::with(Glommio, ClientOptions::new(servers.clone())),
            servers,
            cpu,
            own,
        }
    }

    /// A client of it.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its addresses.
    #[must_use]
    pub fn servers(&self) -> &[String] {
        &self.servers
    }

    /// Its processor time, where the processes are known.
    #[must_use]
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// Where its data is, if it is one of this run.
    #[must_use]
    pub fn dir(&self) -> Option<&Path> {
        self.own.as_ref().map(Cluster::dir)
    }

    /// Makes a topic anew: what it held before is gone.
    ///
    /// # Errors
    /// [`RigError::Call`].
    pub async fn fresh(&self, topic: &str, partitions: u32) -> Result<(), RigError> {
        self.delete(topic).await?;
        let settings = TopicSettingsView::default();
        let made = self.client.create_topic(topic, partitions, None, &settings);
        call("creating a topic", made.await)?;
        Ok(())
    }

    /// Deletes a topic of this run.
    ///
    /// # Errors
    /// [`RigError::Call`].
    pub async fn delete(&self, topic: &str) -> Result<(), RigError> {
        match self.client.delete_topic(topic).await {
            Err(error) if error.code() != Some(ErrorCode::UnknownTopic) => {
                call("deleting a topic", Err(error))
            }
            _ => Ok(()),
        }
    }
}
