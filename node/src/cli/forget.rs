//! `narad cluster forget`: what giving up a dead node for good loses, and giving it up.
//!
//! What this file keeps true: what is given up is what was listed; a size that nobody has told is not shown
//! as none; whatever is not known to be done is not a success.

use super::connect::Session;
use super::error::{CliError, CliResult};
use super::output::Out;
use super::units;
use narad_wire::client::{LossView, LostCopyView, LostPartitionView};
use serde_json::json;

/// Runs the command. `deaths`: as the list said whose loss is accepted; without it the loss is listed first.
///
/// # Errors
/// [`CliError`] of a call or of the output; also when the node was not given up although that was wanted.
pub(super) async fn run(
    session: &Session,
    node: &str,
    accept_loss: bool,
    deaths: Option<u64>,
    out: &mut Out,
) -> CliResult {
    let (mut loss, mut done) = session.forget(node, false, 0).await?;
    if accept_loss {
        let seen = deaths.unwrap_or(loss.deaths);
        (loss, done) = session.forget(node, true, seen).await?;
    }
    if accept_loss && !done {
        return Err(CliError::new(
            "unavailable",
            format!("{node} was not given up: the node that was asked did not do it"),
            "try again, or name another node with --server",
        ));
    }
    if session.json {
        out.json(&json!({"node": node, "forgotten": done, "loss": loss}))
    } else {
        out.line(text(node, &loss, done))
    }
}

/// What giving up a node loses, or has lost.
fn text(node: &str, loss: &LossView, done: bool) -> String {
    let mut text = if done {
        format!(
            "{node} is given up. Lost with its disk, unless it comes back (then it hands over what it has):"
        )
    } else {
        format!("giving {node} up loses:")
    };
    text.push_str(&format!(
        "\n  {} partitions, {}",
        loss.partitions.len(),
        sizes(&loss.partitions)
    ));
    for one in &loss.partitions {
        text.push_str(&format!("\n    {}/{}", one.topic, one.partition));
        match one.bytes {
            Some(bytes) => text.push_str(&format!(", {}", units::size(bytes))),
            None => text.push_str(", size not known"),
        }
        if !one.target.is_empty() {
            text.push_str(&format!(" (a copy is under way to {})", one.target));
        }
    }
    text.push_str(&old_copies(&loss.copies));
    let told = if loss.told {
        format!("{} accepted records", units::count(loss.undispatched))
    } else {
        "accepted records, how many is not known".to_owned()
    };
    text.push_str(&format!("\n  {told} in its ingress WAL"));
    for note in &loss.notes {
        text.push_str(&format!("\nnote: {note}"));
    }
    if !done {
        text.push_str(&format!(
            "\nnothing was changed; narad cluster forget {node} --accept-loss --deaths {} does it",
            loss.deaths
        ));
    }
    text
}

/// The sizes of partitions together, and of how many they are not known.
fn sizes(partitions: &[LostPartitionView]) -> String {
    let known: Vec<u64> = partitions.iter().filter_map(|one| one.bytes).collect();
    let all = units::size(known.iter().sum());
    match partitions.len() - known.len() {
        0 => format!("{all} as last told"),
        n if n == partitions.len() => "size not known (the leader has not heard it)".to_owned(),
        n => format!("{all} as last told, and {n} of a size that is not known"),
    }
}

/// Old copies on the disk that is given up, those first that may hold records which exist nowhere else.
fn old_copies(copies: &[LostCopyView]) -> String {
    if copies.is_empty() {
        return String::new();
    }
    let mut text = format!(
        "\n  {} old copies that it had not handed over yet",
        copies.len()
    );
    let rank = |one: &&LostCopyView| u8::from(one.end == "completed");
    let mut sorted: Vec<&LostCopyView> = copies.iter().collect();
    sorted.sort_by_key(rank);
    for one in sorted {
        let what = match one.end.as_str() {
            "promoted" => format!(
                "acknowledged records from offset {} on may be on its disk only: its place was taken while it was \
                 dead",
                one.from
            ),
            "completed" => format!(
                "everything below offset {} went along when it moved",
                one.from
            ),
            _ => "may be the last of what it holds: the owner after it was given up".to_owned(),
        };
        text.push_str(&format!("\n    {}/{}: {what}", one.topic, one.partition));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(partition: u32, bytes: Option<u64>) -> LostPartitionView {
        LostPartitionView {
            topic: "t".into(),
            partition,
            bytes,
            ..LostPartitionView::default()
        }
    }

    #[test]
    fn a_size_that_nobody_told_is_not_shown_as_none() {
        assert!(sizes(&[lost(0, None)]).starts_with("size not known"));
        assert_eq!(sizes(&[]), "0 B as last told");
        assert_eq!(sizes(&[lost(0, Some(0))]), "0 B as last told");
        let some = sizes(&[lost(0, Some(2 << 20)), lost(1, None)]);
        assert!(
            some.contains("2.0 MiB") && some.contains("1 of a size"),
            "{some}"
        );
    }

    #[test]
    fn old_copies_are_listed_with_what_only_they_hold() {
        let copy = |partition, end: &str, from| LostCopyView {
            topic: "t".into(),
            partition,
            epoch: 1,
            end: end.into(),
            from,
        };
        let loss = LossView {
            copies: vec![copy(0, "completed", 7), copy(1, "promoted", 40)],
            deaths: 3,
            ..LossView::default()
        };
        let shown = text("n5", &loss, false);
        for part in [
            "2 old copies",
            "t/1: acknowledged records from offset 40",
            "--deaths 3",
        ] {
            assert!(shown.contains(part), "{part} is missing:\n{shown}");
        }
        assert!(
            shown.find("t/1") < shown.find("t/0"),
            "the worst first:\n{shown}"
        );
    }
}
