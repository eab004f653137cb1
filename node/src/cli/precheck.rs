//! What is asked before a decommission is started that cannot end as things are.
//!
//! What this file keeps true: scripts are never held up by a question; whoever is asked and does not say yes has
//! changed nothing; every reason is told before anything is started.

use super::args::DecommissionArgs;
use super::error::{CliError, CliResult};
use super::interrupt::Interrupt;
use super::output::Progress;
use std::io::IsTerminal;

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It is started.
    Start,
    /// A person is asked.
    Ask,
    /// It is refused.
    Refuse,
}

fn step(blocked: bool, if_possible: bool, yes: bool, person: bool) -> Step {
    match (blocked, if_possible) {
        (false, _) => Step::Start,
        (true, true) => Step::Refuse,
        (true, false) if person && !yes => Step::Ask,
        (true, false) => Step::Start,
    }
}

/// Tells what keeps the drain of `node` from ending; fails when it is not to be started because of that.
pub(super) async fn agreed(
    node: &str,
    blocked: &[String],
    args: &DecommissionArgs,
    progress: &Progress,
    interrupt: &mut Interrupt,
) -> CliResult {
    for why in blocked {
        progress.note(&format!("will not end as things are: {why}"));
    }
    let person = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    match step(!blocked.is_empty(), args.if_possible, args.yes, person) {
        Step::Start => Ok(()),
        Step::Refuse => Err(not_started(
            node,
            blocked,
            "without --if-possible it is started and waits",
        )),
        Step::Ask => {
            progress.note(&format!(
                "start it all the same? {node} stays until that is over [y/N]"
            ));
            match interrupt.unless(answer()).await {
                Some(line) if is_yes(&line) => Ok(()),
                _ => Err(not_started(node, blocked, "--yes starts it without asking")),
            }
        }
    }
}

fn not_started(node: &str, blocked: &[String], otherwise: &str) -> CliError {
    CliError::new(
        "blocked",
        format!(
            "the decommission of {node} is not started, because it would not end: {}",
            blocked.join("; ")
        ),
        format!("do something about that first; {otherwise}"),
    )
}

/// A line of the person; reading blocks, and must not keep a signal from being seen.
async fn answer() -> String {
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        // Nothing to read is no yes.
        let _ = std::io::stdin().read_line(&mut line);
        let _ = tell.send(line);
    });
    told.await.unwrap_or_default()
}

fn is_yes(line: &str) -> bool {
    matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_person_is_asked_and_only_about_what_cannot_end() {
        for (if_possible, yes, person) in [(false, false, true), (true, false, false)] {
            assert_eq!(step(false, if_possible, yes, person), Step::Start);
        }
        assert_eq!(step(true, false, false, true), Step::Ask);
        assert_eq!(step(true, false, true, true), Step::Start);
        // A script goes on as ever, unless it says that it does not want to.
        assert_eq!(step(true, false, false, false), Step::Start);
        assert_eq!(step(true, true, false, false), Step::Refuse);
        assert_eq!(step(true, true, false, true), Step::Refuse);
    }

    #[test]
    fn only_yes_is_yes() {
        assert!(is_yes("y\n") && is_yes(" YES "));
        for no in ["", "\n", "n", "yess", "no"] {
            assert!(!is_yes(no), "{no:?}");
        }
    }

    #[test]
    fn what_is_not_started_says_why_and_how_else() {
        let why = ["n1 dead: start it again".to_owned()];
        let error = not_started("n1", &why, "--yes starts it without asking");
        assert!(error.message.contains("not started"), "{error}");
        assert!(error.message.contains("start it again"), "{error}");
        assert!(error.hint.contains("--yes"), "{}", error.hint);
    }
}
