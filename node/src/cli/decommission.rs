//! `narad cluster decommission`: drain a node off and remove it, cancel that, show the plan of it,
//! or stay until it is done.
//!
//! What this file keeps true: `--wait` ends with success only when the cluster has said that the node left
//! it in order: one that is not in some node's list may be unknown there, or was given up; it ends with failure only when something that will not pass by itself holds the removal, and
//! then says what.

use super::args::DecommissionArgs;
use super::cluster;
use super::connect::Session;
use super::departure::{confirmed_out, end_of, left};
use super::error::{CliError, CliResult};
use super::interrupt::Interrupt;
use super::moves::interrupted;
use super::output::{Out, Progress};
use super::precheck;
use super::units;
use narad_wire::client::{MemberView, MovesView, PlanView};
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A hold that has not changed for this long, with no move making progress, will not pass by itself.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// Looks in a row that must agree before MinVoters is reported, so that a voter that is just being
/// promoted is not missed.
const MIN_VOTERS_LOOKS: u32 = 6;
/// The same for what a restart or a cancelled decommission may just be ending.
const OTHERS_LOOKS: u32 = 20;
/// What holds it is told again after this time even if it is still the same.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// Runs the command.
///
/// # Errors
/// [`CliError`] of a call or of the output; with `--wait`, what holds the removal.
pub async fn run(
    session: &Session,
    args: DecommissionArgs,
    interrupt: &mut Interrupt,
    out: &mut Out,
) -> CliResult {
    let node = &args.node;
    let progress = Progress::new(session.json);
    if !args.cancel {
        // What will hold it is said before anything is set in motion.
        let checked = match session.decommission(node, false, true).await {
            Err(error) if args.wait => match end_of(node, error) {
                Ok(()) => return left(session, node, 0, out),
                Err(error) => return Err(error),
            },
            checked => checked?,
        };
        let limit = session.throttle(None).await?;
        let estimate = estimate(&checked, &session.moves().await?, limit);
        if args.dry_run {
            if session.json {
                return out.json(&checked);
            }
            out.line(cluster::plan(&checked))?;
            out.line(estimate)?;
            for why in &checked.blocked {
                out.line(format_args!("will not end as things are: {why}"))?;
            }
            return Ok(());
        }
        for note in &checked.notes {
            progress.note(note);
        }
        progress.note(&estimate);
        precheck::agreed(node, &checked.blocked, &args, &progress, interrupt).await?;
    }
    let plan = session.decommission(node, args.cancel, false).await?;
    if args.wait {
        return wait(session, node, interrupt, out).await;
    }
    if session.json {
        return out.json(&plan);
    }
    if args.cancel {
        return out.line(format_args!("{node} stays: it is not draining any more"));
    }
    out.line(format_args!(
        "{node} is draining; narad cluster decommission {node} --wait shows how far it is"
    ))?;
    out.line(cluster::plan(&plan))
}

/// How much has to move, and how long that takes at the pace of the latest moves, within the limit of
/// a node (0: none).
fn estimate(plan: &PlanView, moves: &MovesView, limit: u64) -> String {
    let listed: u64 = plan.steps.iter().map(|step| step.bytes).sum();
    let (count, bytes) = match plan.total_steps {
        // An older node tells of what it lists only, and of a size that it does not know as 0.
        0 => (plan.steps.len() as u64, listed),
        total => (total, plan.total_bytes),
    };
    let untold = plan.steps.iter().filter(|step| step.bytes == 0).count();
    let unknown = if plan.total_steps == 0 { untold } else { 0 };
    let mut text = format!("{count} partitions to move, {}", units::size(bytes));
    if unknown > 0 {
        text.push_str(&format!(" without {unknown} whose size is not told"));
    }
    let mut paces: Vec<u64> = moves
        .moves
        .iter()
        .chain(&moves.finished)
        .map(|one| one.bytes_per_s)
        .filter(|pace| *pace > 0)
        .collect();
    paces.sort_unstable();
    let seen = paces.get(paces.len() / 2).copied();
    let pace = match (seen, limit) {
        (seen, 0) => seen,
        (Some(seen), limit) => Some(seen.min(limit)),
        (None, limit) => Some(limit),
    };
    match pace {
        Some(pace) => {
            let ms = u128::from(bytes) * 1_000 / u128::from(pace);
            let ms = u64::try_from(ms).unwrap_or(u64::MAX);
            let why = if Some(pace) == seen {
                "of the latest moves"
            } else {
                "that copies are limited to"
            };
            text.push_str(&format!(
                "; about {} one after the other, at the {} {why}",
                units::millis(ms),
                units::rate(pace)
            ));
        }
        None => text.push_str("; how fast copies are here is not known before the first one"),
    }
    text
}

/// What one look says.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    /// The node is not in the list.
    Out,
    /// The drain flag was taken away.
    Kept,
    /// Still draining, or being removed.
    Going,
    /// Something holds it that does not pass by itself.
    Stuck(Stuck),
}

/// What somebody has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stuck {
    /// Drained, but too few voters would be left.
    MinVoters,
    /// It is dead with things on its disk, and no copy of them is under way.
    Dead,
    /// It owns partitions, and no other node may take them.
    NoReceiver,
}

impl Stuck {
    /// Looks in a row that must agree.
    fn looks(self) -> u32 {
        match self {
            Self::MinVoters => MIN_VOTERS_LOOKS,
            Self::Dead | Self::NoReceiver => OTHERS_LOOKS,
        }
    }

    fn state(self) -> &'static str {
        match self {
            Self::MinVoters => "it is drained, and owns nothing",
            Self::Dead => "it is dead, and nobody else has what is on its disk",
            Self::NoReceiver => "every other node is draining or dead",
        }
    }

    fn hint(self, node: &str) -> String {
        match self {
            Self::MinVoters => format!(
                "add a node (narad serve --join) and it goes by itself, or keep it: narad cluster decommission {node} --cancel"
            ),
            Self::Dead => format!(
                "start {node} again with its data directory: it hands over what it has and goes by itself"
            ),
            Self::NoReceiver => format!(
                "add a node (narad serve --join), or keep this or another one: narad cluster decommission {node} --cancel"
            ),
        }
    }
}

fn judge(member: Option<&MemberView>) -> Look {
    let Some(member) = member else {
        return Look::Out;
    };
    if !member.draining {
        return Look::Kept;
    }
    let drained = member.owned == 0 && member.inbound == 0 && member.outbound == 0;
    if member.status == "dead" && member.outbound == 0 {
        return Look::Stuck(Stuck::Dead);
    }
    if member.owned > 0 && member.held.contains("no other living member") {
        return Look::Stuck(Stuck::NoReceiver);
    }
    if drained && member.held.contains("MinVoters") {
        return Look::Stuck(Stuck::MinVoters);
    }
    Look::Going
}

/// What shows that something still happens.
type Trace = (u32, u32, u32, u64, String, u64);

fn trace(member: &MemberView, moves: &MovesView) -> Trace {
    let done = moves.moves.iter().map(|one| one.bytes_done).sum();
    (
        member.owned,
        member.inbound,
        member.outbound,
        member.undispatched.unwrap_or(0),
        steady(&member.held),
        done,
    )
}

/// What holds it, without the bytes of disks: they change all the time, and nothing passes by that.
fn steady(held: &str) -> String {
    let Some((before, bytes)) = held.split_once("has disk room: ") else {
        return held.to_owned();
    };
    let after = bytes.split_once("; ").map_or("", |(_, after)| after);
    format!("{before}has disk room; {after}")
}

async fn wait(
    session: &Session,
    node: &str,
    interrupt: &mut Interrupt,
    out: &mut Out,
) -> CliResult {
    let progress = Progress::new(session.json);
    let began = Instant::now();
    let result = watch(session, node, interrupt, &progress).await;
    result?;
    let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    left(session, node, took, out)
}

async fn watch(
    session: &Session,
    node: &str,
    interrupt: &mut Interrupt,
    progress: &Progress,
) -> CliResult {
    let mut stuck: Option<(Stuck, u32)> = None;
    let mut last_hold = String::new();
    let mut told = Instant::now();
    let mut last: Option<(Trace, Instant)> = None;
    loop {
        let view = session.members().await?;
        let member = view.members.iter().find(|member| member.id == node);
        match judge(member) {
            Look::Out => {
                if confirmed_out(session, node).await? {
                    return Ok(());
                }
            }
            Look::Kept => {
                return Err(CliError::new(
                    "cancelled",
                    format!("{node} is not draining any more: somebody cancelled it"),
                    format!("narad cluster decommission {node} --wait starts it again"),
                ));
            }
            Look::Stuck(why) => {
                let before = stuck.filter(|(other, _)| *other == why);
                stuck = Some((why, before.map_or(1, |(_, looks)| looks + 1)));
            }
            Look::Going => stuck = None,
        }
        let Some(member) = member else {
            // The node that answered is behind.
            if interrupt.pause(LOOK_EVERY).await {
                return Err(interrupted());
            }
            continue;
        };
        let moves = session.moves().await?;
        let text = message(member, &moves);
        let hold = steady(&member.held);
        if hold != last_hold || told.elapsed() >= TELL_EVERY {
            progress.note(&text);
            told = Instant::now();
        }
        progress.show(text);
        if hold != last_hold {
            // Whatever else holds it (deliveries, reclaim, leadership) still changes.
            stuck = None;
            last_hold = hold;
        }
        if let Some((why, looks)) = stuck
            && looks >= why.looks()
        {
            return Err(held(node, &member.held, why.state(), why.hint(node)));
        }
        let now = trace(member, &moves);
        match &last {
            Some((before, since)) if *before == now => {
                if !now.4.is_empty() && since.elapsed() >= STUCK_AFTER {
                    let seconds = STUCK_AFTER.as_secs();
                    return Err(held(
                        node,
                        &now.4,
                        &format!("nothing has changed for {seconds} s"),
                        format!(
                            "narad cluster members shows it; it goes on by itself once that is over, or --cancel keeps {node}"
                        ),
                    ));
                }
            }
            _ => last = Some((now, Instant::now())),
        }
        if interrupt.pause(LOOK_EVERY).await {
            return Err(interrupted());
        }
    }
}

fn message(member: &MemberView, moves: &MovesView) -> String {
    let left: u64 = moves
        .moves
        .iter()
        .filter(|one| one.source == member.id)
        .map(|one| one.bytes_left)
        .sum();
    let mut text = format!(
        "{}: {} owned, {} moving away ({} left)",
        member.id,
        member.owned,
        member.outbound,
        units::size(left)
    );
    if !member.held.is_empty() {
        text.push_str("; held: ");
        text.push_str(&member.held);
    }
    text
}

fn held(node: &str, why: &str, state: &str, hint: String) -> CliError {
    CliError::new(
        "held",
        format!("{node} is not removed: {why} ({state})"),
        hint,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> MemberView {
        MemberView {
            id: "n1".into(),
            draining: true,
            ..MemberView::default()
        }
    }

    #[test]
    fn out_of_the_list_is_told_from_kept() {
        assert_eq!(judge(None), Look::Out);
        assert_eq!(judge(Some(&member())), Look::Going);
        let kept = MemberView {
            draining: false,
            ..member()
        };
        assert_eq!(judge(Some(&kept)), Look::Kept);
    }

    #[test]
    fn the_estimate_goes_by_the_median_pace_and_says_what_it_does_not_know() {
        use narad_wire::client::{MoveView, PlanStepView};
        let step = |bytes| PlanStepView {
            bytes,
            ..PlanStepView::default()
        };
        let plan = PlanView {
            steps: vec![step(600 << 20), step(400 << 20), step(0)],
            ..PlanView::default()
        };
        let none = estimate(&plan, &MovesView::default(), 0);
        assert!(
            none.contains("3 partitions") && none.contains("not known"),
            "{none}"
        );
        let of = |bytes_per_s| MoveView {
            bytes_per_s,
            ..MoveView::default()
        };
        let moves = MovesView {
            moves: Vec::new(),
            finished: vec![of(0), of(10 << 20), of(100 << 20), of(900 << 20)],
        };
        let slow = estimate(&plan, &moves, 10 << 20);
        assert!(
            slow.contains("10.0 MiB/s that copies are limited to"),
            "{slow}"
        );
        // Not all are listed: it goes by what there is.
        let cut = PlanView {
            total_steps: 5_000,
            total_bytes: 100 << 30,
            ..plan.clone()
        };
        let whole = estimate(&cut, &moves, 0);
        assert!(
            whole.contains("5000 partitions to move, 100 GiB") && !whole.contains("without"),
            "{whole}"
        );
        let text = estimate(&plan, &moves, 0);
        assert!(
            text.contains("without 1") && text.contains("about 10"),
            "{text}"
        );
        assert!(text.contains("100 MiB/s"), "{text}");
    }

    #[test]
    fn free_bytes_that_change_are_no_sign_of_life() {
        use narad_core::ids::NodeId;
        use narad_core::planner::DrainHold;
        let of = |partitions, room| {
            let hold = DrainHold::NoRoom {
                partitions,
                largest: 5 << 30,
                roomiest: Some((NodeId("n2".into()), room)),
            };
            let held = format!("owns 3 partitions; {hold}; has not told yet what it holds");
            trace(&MemberView { held, ..member() }, &MovesView::default())
        };
        assert_eq!(of(3, 1 << 30), of(3, 2 << 30));
        assert_ne!(of(3, 1 << 30), of(2, 1 << 30));
        let said = of(3, 1 << 30).4;
        assert!(
            said.contains("no other node has disk room; free some"),
            "{said}"
        );
        assert!(said.ends_with("told yet what it holds"), "{said}");
    }

    #[test]
    fn min_voters_counts_only_after_the_drain() {
        let hold = MemberView {
            held: "MinVoters: 3".into(),
            ..member()
        };
        assert_eq!(judge(Some(&hold)), Look::Stuck(Stuck::MinVoters));
        for busy in [
            MemberView {
                owned: 1,
                ..hold.clone()
            },
            MemberView {
                inbound: 1,
                ..hold.clone()
            },
            MemberView {
                outbound: 1,
                ..hold.clone()
            },
        ] {
            assert_eq!(judge(Some(&busy)), Look::Going);
        }
    }

    #[test]
    fn what_somebody_must_end_is_told_from_what_passes() {
        let dead = MemberView {
            status: "dead".into(),
            owned: 2,
            held: "dead: start it again; owns 2 partitions".into(),
            ..member()
        };
        assert_eq!(judge(Some(&dead)), Look::Stuck(Stuck::Dead));
        // A complete copy may take the dead owner's place.
        let copied = MemberView {
            outbound: 1,
            ..dead
        };
        assert_eq!(judge(Some(&copied)), Look::Going);
        let alone = MemberView {
            owned: 1,
            held: narad_core::planner::DrainHold::NoReceiver.to_string(),
            ..member()
        };
        assert_eq!(judge(Some(&alone)), Look::Stuck(Stuck::NoReceiver));
        for hold in ["3 old copies are not reclaimed yet", "owns 2 partitions"] {
            let passes = MemberView {
                owned: 2,
                held: hold.into(),
                ..member()
            };
            assert_eq!(judge(Some(&passes)), Look::Going, "{hold}");
        }
    }

    #[test]
    fn the_failure_names_the_hold_and_the_way_out() {
        for why in [Stuck::MinVoters, Stuck::Dead, Stuck::NoReceiver] {
            let error = held("n1", "the hold", why.state(), why.hint("n1"));
            assert!(error.message.contains("the hold"), "{error}");
            assert!(error.hint.contains("n1"), "{}", error.hint);
        }
        assert!(Stuck::MinVoters.hint("n1").contains("--cancel"));
    }
}
