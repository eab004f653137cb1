//! `narad cluster`: members, plan, move, cancel-move, throttle; moves and decommission are in files
//! of their own.
//!
//! What this file keeps true: a command that changes something says what it has set in motion and
//! how to watch it.

use super::args::{ClusterCommand, Limit, PartitionName};
use super::connect::Session;
use super::decommission;
use super::error::CliResult;
use super::forget;
use super::interrupt::Interrupt;
use super::moves;
use super::output::{Out, render, table, wrap};
use super::screen;
use super::units;
use narad_core::ids::PartitionIndex;
use narad_wire::client::{MemberView, MembersView, PlanView};
use serde_json::json;

/// Runs one of the cluster commands.
///
/// # Errors
/// [`super::error::CliError`] of the call or of the output.
pub async fn run(
    session: &Session,
    command: ClusterCommand,
    interrupt: &mut Interrupt,
) -> CliResult {
    let mut out = Out::new();
    match command {
        ClusterCommand::Members(args) => {
            let look = async || {
                let view = session.members().await?;
                Ok(if session.json {
                    serde_json::to_string(&view).expect("a view is JSON")
                } else {
                    members(&view)
                })
            };
            if args.watch {
                screen::watch(session.json, interrupt, &mut out, look).await?;
            } else {
                out.line(look().await?)?;
            }
        }
        ClusterCommand::Moves(args) => moves::run(session, args, interrupt, &mut out).await?,
        ClusterCommand::Plan => {
            let view = session.plan().await?;
            print(session, &mut out, &view, plan)?;
        }
        ClusterCommand::Move { partition, to } => {
            let id = session
                .move_to(&partition.topic, PartitionIndex(partition.index), &to)
                .await?;
            if session.json {
                out.json(&json!({"move_id": id}))?;
            } else {
                out.line(format_args!(
                    "move {id}: {}/{} goes to {to}; narad cluster moves --watch shows it",
                    partition.topic, partition.index
                ))?;
            }
        }
        ClusterCommand::CancelMove { partition } => {
            cancel_move(session, &partition, &mut out).await?;
        }
        ClusterCommand::Decommission(args) => {
            decommission::run(session, args, interrupt, &mut out).await?;
        }
        ClusterCommand::Forget {
            node,
            accept_loss,
            deaths,
        } => forget::run(session, &node, accept_loss, deaths, &mut out).await?,
        ClusterCommand::Pause | ClusterCommand::Resume => {
            let wanted = matches!(command, ClusterCommand::Pause);
            let paused = session.pause_rebalance(Some(wanted)).await?;
            if session.json {
                out.json(&json!({"paused": paused}))?;
            } else if paused {
                out.line("no more moves are started, drains included; running ones go on. narad cluster resume ends this")?;
            } else {
                out.line("moves are started again; narad cluster plan shows which")?;
            }
        }
        ClusterCommand::Throttle { rate } => {
            let set = rate.map(|rate| match rate {
                Limit::Adaptive => (0, true),
                Limit::Fixed(rate) => (rate, false),
            });
            let (bytes_per_s, adaptive) = session.copy_limit(set).await?;
            if session.json {
                out.json(&json!({"bytes_per_s": bytes_per_s, "adaptive": adaptive}))?;
            } else if adaptive {
                out.line(
                    "copies are adaptive: they yield while produce suffers and take the rest",
                )?;
            } else if bytes_per_s == 0 {
                out.line("copies are not limited")?;
            } else {
                out.line(format_args!(
                    "each node copies at {} at most, in and out",
                    units::rate(bytes_per_s)
                ))?;
            }
        }
    }
    out.flush()
}

async fn cancel_move(session: &Session, partition: &PartitionName, out: &mut Out) -> CliResult {
    let PartitionName { topic, index } = partition;
    let name = format!("{topic}/{index}");
    session.cancel_move(topic, PartitionIndex(*index)).await?;
    // It is cancelled; whether it stays so is worth a question, and no failure without an answer.
    let paused = session.pause_rebalance(None).await.ok();
    if session.json {
        return out.json(&json!({"cancelled": name, "paused": paused}));
    }
    let drained = match paused {
        Some(true) => None,
        _ => drained_owner(session, topic, *index).await,
    };
    out.line(cancelled(&name, paused == Some(true), drained.as_deref()))
}

/// The owner of a partition, if it is being drained.
async fn drained_owner(session: &Session, topic: &str, index: u32) -> Option<String> {
    let topic = session.describe_topic(topic).await.ok()?;
    let partition = topic
        .partitions
        .into_iter()
        .find(|one| one.index == index)?;
    let members = session.members().await.ok()?.members;
    let drains = |one: &MemberView| one.id == partition.owner && one.draining;
    members.iter().any(drains).then_some(partition.owner)
}

/// What a cancelled move comes to: only while rebalancing is paused nothing begins anew.
fn cancelled(name: &str, paused: bool, drained: Option<&str>) -> String {
    if paused {
        return format!("{name} stays where it is until narad cluster resume");
    }
    let again = match drained {
        Some(owner) => format!(
            "{owner} is being drained, so another one begins; narad cluster decommission {owner} \
             --cancel ends that, narad cluster pause holds it up"
        ),
        None => "if the planner wants it, another one begins at once; to keep it where it is, \
                 narad cluster pause first and cancel then"
            .to_owned(),
    };
    format!("the move of {name} is cancelled; {again}")
}

fn print<V: serde::Serialize>(
    session: &Session,
    out: &mut Out,
    view: &V,
    for_people: fn(&V) -> String,
) -> CliResult {
    if session.json {
        out.json(view)
    } else {
        out.line(for_people(view))
    }
}

/// What only the leader is told; `-` while it has not been.
fn told(value: Option<u64>, shown: fn(u64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), shown)
}

fn members(view: &MembersView) -> String {
    let heads = [
        "node", "status", "role", ">owned", ">in/out", ">WAL", ">used", ">free", ">sh", "version",
        "address",
    ];
    let mut rows = table(&heads);
    for member in &view.members {
        let status = match (member.status.as_str(), member.draining) {
            (status, false) => status.to_owned(),
            ("alive", true) => "draining".to_owned(),
            (status, true) => format!("{status}, draining"),
        };
        rows.add_row(vec![
            member.id.clone(),
            status,
            member.role.clone(),
            member.owned.to_string(),
            format!("{}/{}", member.inbound, member.outbound),
            told(member.undispatched, units::count),
            told(member.disk_used_bytes, units::size),
            told(member.disk_free_bytes, units::size),
            member.shards.to_string(),
            member.version.clone(),
            member.addr.clone(),
        ]);
    }
    let held = view.members.iter().filter(|member| !member.held.is_empty());
    let held: String = held
        .map(|member| {
            format!(
                "\n{}",
                wrap(&format!("{} is held by: {}", member.id, member.held))
            )
        })
        .collect();
    let unconfirmed = if view.local {
        "\nnot confirmed: the leader could not be asked. This is what the node that answered knows; it may be old"
    } else {
        ""
    };
    let leader = if view.leader.is_empty() {
        "no leader: nothing can be moved, created or deleted until a majority of the voters is back"
            .to_owned()
    } else {
        format!(
            "leader {}, term {}, applied {}",
            view.leader, view.term, view.applied
        )
    };
    format!("{}\n{held}\n{leader}{unconfirmed}", render(&rows))
}

/// The steps and notes of a plan, for people.
#[must_use]
pub fn plan(view: &PlanView) -> String {
    let mut text = if view.steps.is_empty() && view.later.is_empty() {
        match view.total_steps {
            0 => "nothing to move".to_owned(),
            _ => "no move can be planned yet".to_owned(),
        }
    } else {
        let mut rows = table(&["partition", "from", "to", ">size", "start", "reason"]);
        let now = view.steps.iter().map(|step| (step, "now"));
        for (step, start) in now.chain(view.later.iter().map(|step| (step, "later"))) {
            rows.add_row(vec![
                format!("{}/{}", step.topic, step.partition),
                step.from.clone(),
                step.to.clone(),
                units::size(step.bytes),
                start.to_owned(),
                step.reason.clone(),
            ]);
        }
        let total = view.total_steps.max(view.steps.len() as u64);
        format!(
            "{}\n{total} partitions to move, {}",
            render(&rows),
            units::size(view.total_bytes)
        )
    };
    for note in &view.notes {
        text.push_str("\nnote: ");
        text.push_str(note);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_wire::client::PlanStepView;

    #[test]
    fn members_show_drain_and_what_holds() {
        let view = MembersView {
            members: vec![MemberView {
                id: "n1".into(),
                status: "alive".into(),
                draining: true,
                role: "voter".into(),
                held: format!("MinVoters: 3 voters must stay{}", ", and so on".repeat(20)),
                addr: "127.0.0.1:7420".into(),
                ..MemberView::default()
            }],
            ..MembersView::default()
        };
        let text = members(&view);
        assert!(
            text.contains("draining") && text.contains("MinVoters"),
            "{text}"
        );
        assert!(text.contains("no leader"), "{text}");
        assert!(!text.contains("not confirmed"), "{text}");
        let local = members(&MembersView {
            local: true,
            ..view.clone()
        });
        assert!(local.contains("not confirmed"), "{local}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }

    #[test]
    fn what_nobody_has_told_is_no_number() {
        let mut view = MembersView {
            members: vec![MemberView {
                id: "n1".into(),
                status: "dead".into(),
                ..MemberView::default()
            }],
            ..MembersView::default()
        };
        let text = members(&view);
        assert!(!text.contains("0 B"), "{text}");
        let json = serde_json::to_value(&view).expect("a view is JSON");
        assert!(json["members"][0]["disk_free_bytes"].is_null(), "{json}");
        view.members[0].disk_free_bytes = Some(0);
        assert!(members(&view).contains("0 B"));
    }

    #[test]
    fn a_member_fits_one_line_of_100_columns() {
        let view = MembersView {
            members: vec![MemberView {
                id: "n12".into(),
                status: "alive".into(),
                draining: true,
                role: "learner".into(),
                owned: 1_234,
                inbound: 4,
                outbound: 12,
                undispatched: Some(12_345),
                disk_used_bytes: Some(900 << 30),
                disk_free_bytes: Some(123 << 30),
                shards: 15,
                version: "0.10.12".into(),
                addr: "192.168.17.12:7420".into(),
                ..MemberView::default()
            }],
            leader: "n1".into(),
            ..MembersView::default()
        };
        let text = members(&view);
        let row = text.lines().nth(1).expect("a row");
        for part in [
            "n12",
            "4/12",
            "900 GiB",
            "123 GiB",
            "0.10.12",
            "192.168.17.12:7420",
        ] {
            assert!(row.contains(part), "{part} is not in one line:\n{text}");
        }
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }

    #[test]
    fn a_cancelled_move_is_said_to_stay_only_where_nothing_begins_anew() {
        assert!(cancelled("orders/3", true, None).contains("stays where it is until"));
        let balanced = cancelled("orders/3", false, None);
        assert!(balanced.contains("pause first"), "{balanced}");
        let drained = cancelled("orders/3", false, Some("n2"));
        assert!(drained.contains("decommission n2 --cancel"), "{drained}");
    }

    #[test]
    fn a_plan_shows_steps_and_notes() {
        assert_eq!(plan(&PlanView::default()), "nothing to move");
        let view = PlanView {
            steps: vec![PlanStepView {
                topic: "orders".into(),
                partition: 3,
                from: "n1".into(),
                to: "n2".into(),
                reason: "balance".into(),
                bytes: 3 << 20,
            }],
            later: vec![PlanStepView {
                topic: "orders".into(),
                partition: 4,
                ..PlanStepView::default()
            }],
            total_steps: 5_000,
            total_bytes: 7 << 30,
            notes: vec!["n3 is dead: 2 partitions wait for it".into()],
            blocked: Vec::new(),
        };
        let text = plan(&view);
        let row = |part: &str| {
            let row = text.lines().find(|line| line.contains(part));
            row.unwrap_or_else(|| panic!("{part}: {text}")).to_owned()
        };
        assert!(row("orders/3").contains("3.0 MiB") && row("orders/3").contains("now"));
        assert!(row("orders/4").contains("later"), "{text}");
        assert!(text.contains("5000 partitions to move, 7.0 GiB"), "{text}");
        assert!(text.contains("note: n3 is dead"), "{text}");
    }
}
