//! `narad cluster moves`: the running and the latest finished moves, once, again and again
//! (`--watch`), or until the cluster has come to rest (`--wait`).
//!
//! What this file keeps true: "at rest" needs the planner's word as well as an empty list, twice in
//! a row, so that the pause between two waves of moves does not count.

use super::args::MovesArgs;
use super::connect::Session;
use super::error::{CliError, CliResult};
use super::interrupt::Interrupt;
use super::output::{Out, Progress, render, table};
use super::screen::{self, LOOK_EVERY};
use super::units;
use narad_wire::client::{MoveView, MovesView};
use std::time::{Duration, Instant};

/// Looks in a row at which nothing moved, before the cluster is said to be at rest.
const QUIET_LOOKS: u32 = 2;
/// Finished moves shown to people; `--json` shows what the nodes remember.
const FINISHED_SHOWN: usize = 20;

/// Runs the command.
///
/// # Errors
/// [`CliError`] of a call or of the output; with `--wait`, when the time is over.
pub async fn run(
    session: &Session,
    args: MovesArgs,
    interrupt: &mut Interrupt,
    out: &mut Out,
) -> CliResult {
    if args.wait {
        return wait(session, args.for_seconds, interrupt, out).await;
    }
    let show = |view: &MovesView| {
        if session.json {
            serde_json::to_string(view).expect("a view is JSON")
        } else if args.history {
            history(view)
        } else {
            overview(view)
        }
    };
    if !args.watch {
        return out.line(show(&session.moves().await?));
    }
    screen::watch(session.json, interrupt, out, async || {
        Ok(show(&session.moves().await?))
    })
    .await
}

/// Finished moves with the parts of their freezes.
fn history(view: &MovesView) -> String {
    if view.finished.is_empty() {
        return "no move has ended yet, as far as the nodes that run remember".to_owned();
    }
    let heads = [
        "partition",
        "move",
        "outcome",
        ">took",
        ">freeze",
        ">settle",
        ">drain",
        ">persist",
        ">install",
        ">flip",
        ">takeover",
    ];
    let mut rows = table(&heads);
    for one in &view.finished {
        let split = &one.split;
        // In ms, without saying so in each cell: the table has a line for that.
        let part = |us: u64| match us {
            0 => "-".to_owned(),
            us => format!("{:.2}", us as f64 / 1_000.0),
        };
        rows.add_row(vec![
            format!("{}/{}", one.topic, one.partition),
            format!("{} > {}", one.source, one.target),
            one.outcome.clone(),
            units::millis(one.elapsed_ms),
            part(one.freeze_us),
            part(split.settle_us),
            part(split.drain_us),
            part(split.persist_us),
            part(split.install_us),
            part(split.flip_us),
            part(split.takeover_us),
        ]);
    }
    format!("freezes and their parts in ms\n{}", render(&rows))
}

async fn wait(
    session: &Session,
    for_seconds: Option<u64>,
    interrupt: &mut Interrupt,
    out: &mut Out,
) -> CliResult {
    let began = Instant::now();
    let progress = Progress::new(session.json);
    let mut quiet = 0;
    let last = loop {
        let view = session.moves().await?;
        let plan = session.plan().await?;
        // What waits for a leader that has not been told of the disks yet is in the total only.
        let planned = plan.steps.len().max(plan.total_steps as usize);
        if view.moves.is_empty() && planned == 0 {
            quiet += 1;
            if quiet >= QUIET_LOOKS {
                break view;
            }
        } else {
            quiet = 0;
        }
        progress.say(summary(&view, planned));
        if for_seconds.is_some_and(|seconds| began.elapsed() >= Duration::from_secs(seconds)) {
            return Err(CliError::new(
                "still_moving",
                format!("not at rest yet: {}", summary(&view, planned)),
                "narad cluster moves shows what each move waits for",
            ));
        }
        if interrupt.pause(LOOK_EVERY).await {
            return Err(interrupted());
        }
    };
    if session.json {
        out.json(&last)
    } else {
        out.line("nothing moves and nothing is planned")
    }
}

/// The failure of a command whose work goes on in the cluster after ctrl-c.
#[must_use]
pub fn interrupted() -> CliError {
    CliError::new(
        "interrupted",
        "interrupted; the cluster goes on by itself",
        "narad cluster moves --watch shows how far it is",
    )
}

/// Running moves in one line.
#[must_use]
pub fn summary(view: &MovesView, planned: usize) -> String {
    let left: u64 = view.moves.iter().map(|one| one.bytes_left).sum();
    let speed: u64 = view.moves.iter().map(|one| one.bytes_per_s).sum();
    let mut text = format!(
        "{} moving, {planned} more planned, {} left at {}",
        view.moves.len(),
        units::size(left),
        units::rate(speed)
    );
    if let Some(stuck) = view.moves.iter().find(|one| !one.last_error.is_empty()) {
        text.push_str(&format!(
            "; {}/{}: {}",
            stuck.topic, stuck.partition, stuck.last_error
        ));
    }
    text
}

fn overview(view: &MovesView) -> String {
    let mut text = if view.moves.is_empty() {
        "nothing moves".to_owned()
    } else {
        running(&view.moves)
    };
    if !view.finished.is_empty() {
        let from = view.finished.len().saturating_sub(FINISHED_SHOWN);
        text.push_str("\n\nfinished\n");
        text.push_str(&finished(&view.finished[from..]));
    }
    text
}

fn running(moves: &[MoveView]) -> String {
    // Most of the time nothing is frozen, and the width is needed for other things.
    let frozen = moves.iter().any(|one| one.frozen_for_us > 0);
    let mut heads = vec![
        "partition",
        "from",
        "to",
        "phase",
        ">%",
        ">done",
        ">left",
        ">B",
        ">W/B",
        ">pass",
        ">ETA",
    ];
    heads.extend(frozen.then_some(">frozen"));
    heads.push("last error");
    let mut rows = table(&heads);
    for one in moves {
        let mut row = vec![
            format!("{}/{}", one.topic, one.partition),
            one.source.clone(),
            one.target.clone(),
            one.phase.clone(),
            one.percent().to_string(),
            units::size(one.bytes_done),
            units::size(one.bytes_left),
            pace(one),
            ratio(one),
            one.passes.to_string(),
            one.eta_ms().map_or("-".to_owned(), units::millis),
        ];
        if frozen {
            row.push(match one.frozen_for_us {
                0 => "-".to_owned(),
                us => units::millis(us.div_ceil(1_000)),
            });
        }
        row.push(one.last_error.clone());
        rows.add_row(row);
    }
    render(&rows)
}

fn finished(moves: &[MoveView]) -> String {
    let heads = [
        "partition",
        "from",
        "to",
        "outcome",
        ">bytes",
        ">B",
        ">W/B",
        ">pass",
        ">took",
        ">freeze",
        "",
    ];
    let mut rows = table(&heads);
    for one in moves {
        let note = if one.outcome == "flipped" && !one.converged {
            "not converged"
        } else {
            ""
        };
        let freeze = if one.freeze_us == 0 {
            "-".to_owned()
        } else {
            units::micros(one.freeze_us)
        };
        rows.add_row(vec![
            format!("{}/{}", one.topic, one.partition),
            one.source.clone(),
            one.target.clone(),
            one.outcome.clone(),
            units::size(one.bytes_done),
            pace(one),
            ratio(one),
            one.passes.to_string(),
            units::millis(one.elapsed_ms),
            freeze,
            note.to_owned(),
        ]);
    }
    render(&rows)
}

/// B, unknown before anything was copied.
fn pace(one: &MoveView) -> String {
    match one.bytes_per_s {
        0 => "-".to_owned(),
        pace => units::rate(pace),
    }
}

/// W/B, unknown before the first pass.
fn ratio(one: &MoveView) -> String {
    if one.bytes_per_s == 0 {
        return "-".to_owned();
    }
    format!(
        "{:.2}",
        one.write_bytes_per_s as f64 / one.bytes_per_s as f64
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moving() -> MoveView {
        MoveView {
            topic: "orders".into(),
            partition: 3,
            source: "n1".into(),
            target: "n4".into(),
            phase: "catch_up".into(),
            bytes_done: 3 << 30,
            bytes_left: 1 << 30,
            bytes_per_s: 200 << 20,
            write_bytes_per_s: 20 << 20,
            passes: 1,
            ..MoveView::default()
        }
    }

    #[test]
    fn a_running_move_shows_how_far_it_is() {
        let view = MovesView {
            moves: vec![moving()],
            finished: Vec::new(),
        };
        let text = overview(&view);
        for part in ["orders/3", "catch_up", "75", "3.0 GiB", "200 MiB/s", "0.10"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }

    #[test]
    fn a_frozen_source_shows_for_how_long_and_an_unknown_pace_shows_as_such() {
        let mut frozen = moving();
        frozen.phase = "flip_unknown".into();
        frozen.frozen_for_us = 61_200;
        frozen.last_error = "no leader could be reached to learn about the flip".into();
        let mut new = moving();
        new.partition = 11;
        (new.bytes_per_s, new.phase) = (0, "open".into());
        let text = running(&[frozen, new.clone()]);
        assert!(text.contains("frozen") && text.contains("62 ms"), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        let text = running(&[new]);
        assert!(
            !text.contains("frozen") && !text.contains("0 B/s"),
            "{text}"
        );
    }

    #[test]
    fn the_history_shows_the_parts_of_a_freeze_within_the_width() {
        let mut done = moving();
        done.outcome = "superseded".into();
        done.freeze_us = 123_456;
        done.split.drain_us = 100_000;
        done.split.flip_us = 23_456;
        let view = MovesView {
            moves: Vec::new(),
            finished: vec![done],
        };
        let text = history(&view);
        assert!(text.contains("drain") && text.contains("100"), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        assert!(history(&MovesView::default()).contains("no move"));
    }

    #[test]
    fn a_stalled_move_says_why() {
        let mut stalled = moving();
        stalled.last_error = "n1 does not answer".into();
        let view = MovesView {
            moves: vec![stalled],
            finished: Vec::new(),
        };
        assert!(summary(&view, 0).contains("n1 does not answer"));
    }

    #[test]
    fn a_finished_move_shows_its_freeze() {
        let mut done = moving();
        done.outcome = "flipped".into();
        done.freeze_us = 3_450;
        let view = MovesView {
            moves: Vec::new(),
            finished: vec![done],
        };
        let text = overview(&view);
        assert!(
            text.contains("3.45 ms") && text.contains("not converged"),
            "{text}"
        );
    }
}
