//! `narad topic`: create, list, describe, alter, delete.
//!
//! What this file keeps true: figures that no owner could tell are shown as unknown, not as zero.

use super::args::{TopicAlterArgs, TopicCommand, TopicCreateArgs, TopicSettingArgs};
use super::connect::Session;
use super::error::{CliError, CliResult};
use super::output::{Out, render, table};
use super::units;
use narad_core::meta::Setting;
use narad_wire::client::{PartitionView, TopicSettingsView, TopicView};
use serde_json::json;
use std::collections::BTreeMap;

/// Runs one of the topic commands.
///
/// # Errors
/// [`CliError`] of the call or of the output.
pub async fn run(session: &Session, command: TopicCommand) -> CliResult {
    let mut out = Out::new();
    match command {
        TopicCommand::Create(args) => create(session, args, &mut out).await?,
        TopicCommand::List => list(session, &mut out).await?,
        TopicCommand::Describe { name } => {
            let topic = session.describe_topic(&name).await?;
            if session.json {
                out.json(&topic)?;
            } else {
                describe(&topic, &mut out)?;
            }
        }
        TopicCommand::Alter(args) => alter(session, args, &mut out).await?,
        TopicCommand::Delete { name } => {
            session.delete_topic(&name).await?;
            if session.json {
                out.json(&json!({"deleted": name}))?;
            } else {
                out.line(format_args!("topic {name} is deleted"))?;
            }
        }
    }
    out.flush()
}

async fn create(session: &Session, args: TopicCreateArgs, out: &mut Out) -> CliResult {
    let (settings, _) = named(args.settings)?;
    let parent = args.parent.as_deref();
    let topic = session
        .create_topic(&args.name, args.partitions, parent, &settings)
        .await?;
    if session.json {
        return out.json(&topic);
    }
    out.line(format_args!(
        "topic {} is created: {} partitions, {}",
        topic.name,
        topic.partitions.len(),
        spread(&topic)
    ))
}

async fn alter(session: &Session, args: TopicAlterArgs, out: &mut Out) -> CliResult {
    let (wanted, change) = named(args.settings)?;
    if change.is_empty() {
        return Err(CliError::usage(
            "nothing to change",
            "name a setting; narad topic alter --help lists them",
        ));
    }
    let topic = session.alter_topic(&args.name, &wanted, &change).await?;
    if session.json {
        return out.json(&topic);
    }
    out.line(format_args!("topic {} is changed", topic.name))?;
    settings(&topic.settings, out)
}

/// The settings that a person has named, and which these are.
fn named(args: TopicSettingArgs) -> CliResult<(TopicSettingsView, Vec<Setting>)> {
    let max_record_bytes = args.max_record_bytes.map(u32::try_from).transpose();
    let max_record_bytes = max_record_bytes.map_err(|_| {
        CliError::usage(
            "--max-record-bytes is too large",
            "1MiB is the default and the most",
        )
    })?;
    let change = [
        (args.visibility_ms.is_some(), Setting::VisibilityMs),
        (args.retention_ms.is_some(), Setting::RetentionMs),
        (args.retention_bytes.is_some(), Setting::RetentionBytes),
        (max_record_bytes.is_some(), Setting::MaxRecordBytes),
        (args.max_deliveries.is_some(), Setting::MaxDeliveries),
        (args.dead_letter.is_some(), Setting::DeadLetter),
        (args.max_leases.is_some(), Setting::MaxLeases),
        (args.max_acked_ahead.is_some(), Setting::MaxAckedAhead),
    ];
    let change = change.into_iter().filter(|(named, _)| *named);
    let view = TopicSettingsView {
        visibility_ms: args.visibility_ms.unwrap_or(0),
        retention_ms: args.retention_ms.unwrap_or(0),
        retention_bytes: args.retention_bytes.unwrap_or(0),
        max_record_bytes: max_record_bytes.unwrap_or(0),
        max_deliveries: args.max_deliveries.unwrap_or(0),
        dead_letter: args.dead_letter.unwrap_or_default(),
        max_leases: args.max_leases.unwrap_or(0),
        max_acked_ahead: args.max_acked_ahead.unwrap_or(0),
    };
    Ok((view, change.map(|(_, setting)| setting).collect()))
}

/// Partitions by owner, as `n1 4, n2 4`.
fn spread(topic: &TopicView) -> String {
    let mut owners: BTreeMap<&str, u32> = BTreeMap::new();
    for partition in &topic.partitions {
        *owners.entry(&partition.owner).or_default() += 1;
    }
    let each: Vec<String> = owners.iter().map(|(id, n)| format!("{id} {n}")).collect();
    each.join(", ")
}

async fn list(session: &Session, out: &mut Out) -> CliResult {
    let topics = session.list_topics().await?;
    if session.json {
        return out.json(&json!({"topics": topics}));
    }
    if topics.is_empty() {
        return out.line("no topics; narad topic create NAME --partitions N makes one");
    }
    let mut rows = table(&["topic", ">partitions", ">moving", "owners", "parent"]);
    for topic in &topics {
        let moving = topic.partitions.iter().filter(|p| !p.target.is_empty());
        rows.add_row(vec![
            topic.name.clone(),
            topic.partitions.len().to_string(),
            moving.count().to_string(),
            spread(topic),
            topic.parent.clone(),
        ]);
    }
    out.line(render(&rows))
}

fn describe(topic: &TopicView, out: &mut Out) -> CliResult {
    out.line(format_args!(
        "topic       {} (incarnation {})",
        topic.name, topic.id
    ))?;
    if !topic.parent.is_empty() {
        out.line(format_args!("parent      {}", topic.parent))?;
    }
    settings(&topic.settings, out)?;
    out.line("")?;
    let heads = [
        ">partition",
        "owner",
        "moving to",
        ">epoch",
        ">start",
        ">frontier",
        ">hwm",
        ">waiting",
        ">bytes",
    ];
    let mut rows = table(&heads);
    for partition in &topic.partitions {
        rows.add_row(partition_row(partition));
    }
    out.line(render(&rows))?;
    if topic.partitions.iter().any(|partition| !partition.known) {
        out.line(
            "\n?: the owner could not be asked now; narad cluster members shows who is alive",
        )?;
    }
    Ok(())
}

fn settings(settings: &TopicSettingsView, out: &mut Out) -> CliResult {
    let or_default = |value: u64, shown: String, without: &str| {
        if value == 0 {
            without.to_owned()
        } else {
            shown
        }
    };
    let visibility = settings.visibility_ms;
    let visibility = or_default(visibility, units::millis(visibility), "default");
    out.line(format_args!("visibility  {visibility}"))?;
    let age = or_default(
        settings.retention_ms,
        units::millis(settings.retention_ms),
        "any age",
    );
    let bytes = settings.retention_bytes;
    let bytes = or_default(
        bytes,
        format!("{} a partition", units::size(bytes)),
        "any size",
    );
    out.line(format_args!("kept        {age}, {bytes}"))?;
    let record = u64::from(settings.max_record_bytes);
    let record = or_default(record, units::size(record), "default");
    out.line(format_args!("record max  {record}"))?;
    out.line(format_args!(
        "out         {} a partition at a time, {} acked ahead",
        units::count(settings.max_leases.into()),
        units::count(settings.max_acked_ahead.into())
    ))?;
    if settings.max_deliveries > 0 {
        let then = if settings.dead_letter.is_empty() {
            "nowhere"
        } else {
            &settings.dead_letter
        };
        out.line(format_args!(
            "deliveries  {}, then to {then}",
            settings.max_deliveries
        ))?;
    }
    Ok(())
}

fn partition_row(partition: &PartitionView) -> Vec<String> {
    let figure = |value: u64| {
        if partition.known {
            units::count(value)
        } else {
            "?".to_owned()
        }
    };
    let bytes = if partition.known {
        units::size(partition.bytes)
    } else {
        "?".to_owned()
    };
    vec![
        partition.index.to_string(),
        partition.owner.clone(),
        partition.target.clone(),
        partition.epoch.to_string(),
        figure(partition.start),
        figure(partition.frontier),
        figure(partition.hwm),
        figure(partition.hwm.saturating_sub(partition.frontier)),
        bytes,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_figures_are_not_zero() {
        let unknown = partition_row(&PartitionView::default());
        assert!(unknown[4..].iter().all(|cell| cell == "?"), "{unknown:?}");
        let known = partition_row(&PartitionView {
            known: true,
            hwm: 1500,
            frontier: 500,
            ..PartitionView::default()
        });
        assert_eq!(known[7], "1,000");
    }
}
