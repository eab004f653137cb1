//! A work queue from Rust: a producer, a worker that acks, extends and gives back, a replay.
//!
//! ```sh
//! cargo run -p narad-wire --example work_queue -- 127.0.0.1:7420
//! ```
//!
//! What this file keeps true: it ends well only when every job was done and nothing was lost.

use narad_core::ids::{Offset, PartitionIndex};
use narad_wire::client::{
    Client, ConsumerOptions, Produced, ProducerOptions, Record, TopicSettingsView,
};
use narad_wire::error::{ErrorCode, WireError};
use std::collections::BTreeSet;

// A program on glommio 0.9 is linked with these, or its executors may sleep while they have work; `link.rs` beside
// this crate's manifest tells the linker. A test that takes this file in has its own.
#[cfg(not(test))]
narad_wire::runtime_hooks!();

/// Jobs of the example.
const JOBS: usize = 500;

fn main() {
    let servers: Vec<String> = std::env::args().skip(1).collect();
    if servers.is_empty() {
        eprintln!("usage: work_queue HOST:PORT…");
        std::process::exit(2);
    }
    let executor = glommio::LocalExecutor::default();
    let done = executor.run(async { run(&Client::new(servers), "example-jobs").await });
    match done {
        Ok(jobs) => println!("{jobs} jobs were done"),
        Err(error) => {
            eprintln!("work_queue: {error}");
            std::process::exit(1);
        }
    }
}

/// The example: how many jobs were done.
///
/// # Errors
/// [`WireError`] of the first call that no repetition helps.
pub async fn run(client: &Client, topic: &str) -> Result<usize, WireError> {
    let settings = TopicSettingsView {
        visibility_ms: 30_000,
        ..TopicSettingsView::default()
    };
    match client.create_topic(topic, 4, None, &settings).await {
        Err(error) if error.code() == Some(ErrorCode::TopicExists) => {}
        created => drop(created?),
    }
    let wanted = produce(client, topic).await?;
    work(client, topic, wanted).await?;
    look_again(client, topic).await
}

/// Sends jobs. `send` takes a record and returns a receipt at once; batches are made, sent to the
/// owners and repeated behind it. The receipt tells where the record is.
async fn produce(client: &Client, topic: &str) -> Result<BTreeSet<Vec<u8>>, WireError> {
    let producer = client.producer(topic, ProducerOptions::default());
    let mut wanted = BTreeSet::new();
    let mut receipts = Vec::new();
    for n in 0..JOBS {
        let job = format!("job {n}").into_bytes();
        // Jobs of one customer go to one partition, in order while it does not move.
        let record = Record::new(job.clone()).key(format!("customer {}", n % 20).into_bytes());
        receipts.push(producer.send(record, None).await?);
        wanted.insert(job);
    }
    producer.flush().await;
    for receipt in receipts {
        match receipt.await? {
            Produced::Committed { .. } => {}
            // Durable at a node that passes it on to its partition's owner.
            Produced::Accepted => {}
        }
    }
    Ok(wanted)
}

/// Works until every job has been done at least once.
async fn work(
    client: &Client,
    topic: &str,
    mut wanted: BTreeSet<Vec<u8>>,
) -> Result<(), WireError> {
    let mut consumer = client.consumer(topic, ConsumerOptions::default());
    let mut first = true;
    while !wanted.is_empty() {
        let batch = consumer.next().await?;
        // Work that takes long keeps its leases.
        consumer.extend(&batch, 60_000).await;
        // A job that fails is given back, and comes again after a while, maybe to another worker.
        let (failed, done) = batch.split_at(usize::from(first));
        consumer.nack(failed, 100).await;
        for delivery in done {
            // At least once: what was done before is done again without harm.
            wanted.remove(&delivery.record.value);
        }
        // `Settled::Stale` only means that a record comes again.
        consumer.ack(done).await;
        first = false;
    }
    // What was fetched and not handed out goes to others at once.
    consumer.close().await;
    Ok(())
}

/// Reads everything again, without leases: acked records stay as long as the topic keeps them.
async fn look_again(client: &Client, topic: &str) -> Result<usize, WireError> {
    let mut jobs = BTreeSet::new();
    for partition in 0..client.describe_topic(topic).await?.partitions.len() {
        let partition = PartitionIndex(u32::try_from(partition).unwrap_or(u32::MAX));
        let mut replay = client.replay(topic, partition, Offset(0), None);
        while let Some(batch) = replay.next().await? {
            jobs.extend(batch.records.into_iter().map(|one| one.record.value));
        }
    }
    Ok(jobs.len())
}
