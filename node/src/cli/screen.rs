//! A live screen: what is shown is drawn over what was shown before.
//!
//! What this file keeps true: only lines that have changed are sent, so that a slow line is not filled
//! with what the terminal shows already; where there is no terminal every look is printed whole. A look that gets
//! no answer does not end the watching: nodes restart and leaders change while somebody watches.

use super::error::{CliError, CliResult};
use super::interrupt::Interrupt;
use super::output::Out;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(1_000);

/// What a terminal shows.
#[derive(Debug, Default)]
pub struct Screen {
    lines: Vec<String>,
    begun: bool,
}

impl Screen {
    /// What to send so that the terminal shows `text`, cut at `width` columns.
    #[must_use]
    pub fn update(&mut self, text: &str, width: usize) -> String {
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.chars().take(width).collect())
            .collect();
        let mut sent = String::new();
        if !self.begun {
            sent.push_str("\x1b[2J");
            self.begun = true;
        }
        for (row, line) in lines.iter().enumerate() {
            if self.lines.get(row) != Some(line) {
                sent.push_str(&format!("\x1b[{};1H{line}\x1b[K", row + 1));
            }
        }
        if self.lines.len() > lines.len() {
            sent.push_str(&format!("\x1b[{};1H\x1b[J", lines.len() + 1));
        }
        if !sent.is_empty() {
            sent.push_str(&format!("\x1b[{};1H", lines.len() + 1));
        }
        self.lines = lines;
        sent
    }
}

/// Columns of the terminal; as wide as a table where that is not known.
fn width() -> usize {
    let columns = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    columns.unwrap_or(usize::from(super::output::MAX_WIDTH))
}

/// What was seen last, and why there is nothing newer.
struct Seen {
    text: String,
    at: Instant,
}

impl Seen {
    fn since(&self, error: &CliError) -> String {
        let ago = self.at.elapsed().as_secs();
        format!(
            "no answer: {}\ntrying again; this was seen {ago} s ago:\n\n{}",
            error.message, self.text
        )
    }
}

/// Shows what `look` gives until the user interrupts.
///
/// # Errors
/// Of the output; of the first look; of a later one that asking again cannot mend.
pub async fn watch(
    json: bool,
    interrupt: &mut Interrupt,
    out: &mut Out,
    mut look: impl AsyncFnMut() -> CliResult<String>,
) -> CliResult {
    let live = !json && std::io::stdout().is_terminal();
    let mut screen = Screen::default();
    let mut seen: Option<Seen> = None;
    loop {
        let (fresh, text) = match (look().await, &seen) {
            (Ok(text), _) => (true, text),
            (Err(error), Some(seen)) if error.transient && live => (false, seen.since(&error)),
            (Err(error), Some(_)) if error.transient => {
                error.report(json);
                (false, String::new())
            }
            (Err(error), _) => return Err(error),
        };
        if live {
            let sent = screen.update(&text, width());
            out.raw(sent.as_bytes())?;
        } else if fresh {
            out.line(&text)?;
        }
        if fresh {
            let at = Instant::now();
            seen = Some(Seen { text, at });
        }
        out.flush()?;
        if interrupt.pause(LOOK_EVERY).await {
            if !json {
                out.line("watching ends here; the cluster goes on by itself")?;
                out.flush()?;
            }
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changed_is_sent() {
        let mut screen = Screen::default();
        let first = screen.update("one\ntwo\nthree", 80);
        assert!(
            first.contains("one") && first.contains("three"),
            "{first:?}"
        );
        assert_eq!(screen.update("one\ntwo\nthree", 80), "", "nothing changed");
        let second = screen.update("one\n2\nthree", 80);
        assert!(second.contains('2') && !second.contains("one") && !second.contains("three"));
        let shorter = screen.update("one", 80);
        assert!(shorter.contains("\x1b[2;1H\x1b[J"), "{shorter:?}");
        assert!(screen.update("a long line", 6).contains("a long\x1b[K"));
    }
}
