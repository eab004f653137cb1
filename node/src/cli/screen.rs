//! A live screen: what is shown is drawn over what was shown before.
//!
//! What this file keeps true: only lines that have changed are sent, so that a slow line is not filled
//! with what the terminal shows already, and no more than the terminal has room for: a line that is too long would run
//! over the next one, and lines too many over each other. Where there is no terminal every look is printed whole. A
//! look that gets no answer does not end the watching: nodes restart and leaders change while somebody watches.

use super::error::{CliError, CliResult};
use super::interrupt::Interrupt;
use super::output::Out;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Between two looks.
pub const LOOK_EVERY: Duration = Duration::from_millis(1_000);

/// Room of a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Columns.
    pub columns: usize,
    /// Rows.
    pub rows: usize,
}

impl Size {
    /// Of the terminal behind standard output, as it is now: windows are resized.
    #[must_use]
    pub fn of_stdout() -> Self {
        let mut told = nix::libc::winsize {
            ws_row: 0,
            ws_col: 0,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: the call writes to `told` alone, which has the layout that it expects.
        let done = unsafe {
            nix::libc::ioctl(
                nix::libc::STDOUT_FILENO,
                nix::libc::TIOCGWINSZ,
                std::ptr::from_mut(&mut told),
            )
        };
        let known = |count: u16| (done == 0 && count > 0).then_some(usize::from(count));
        let columns = || std::env::var("COLUMNS").ok()?.parse().ok();
        Self {
            columns: known(told.ws_col)
                .or_else(columns)
                .unwrap_or(usize::from(super::output::MAX_WIDTH)),
            rows: known(told.ws_row).unwrap_or(usize::MAX),
        }
    }

    /// The lines of `text` that there is room for. The last row is left to the cursor.
    fn cut(self, text: &str) -> Vec<String> {
        let all = text.lines().count();
        let room = self.rows.saturating_sub(1).max(1);
        let shown = if all > room { room - 1 } else { all };
        let line = |line: &str| line.chars().take(self.columns).collect();
        let mut lines: Vec<String> = text.lines().take(shown).map(line).collect();
        if shown < all {
            let hidden = all - shown;
            lines.push(line(&format!(
                "{hidden} more rows are not shown: the window is too low"
            )));
        }
        lines
    }
}

/// What a terminal shows.
#[derive(Debug, Default)]
pub struct Screen {
    lines: Vec<String>,
    size: Size,
}

impl Screen {
    /// What to send so that a terminal of this size shows `text`, as far as it has room.
    #[must_use]
    pub fn update(&mut self, text: &str, size: Size) -> String {
        let lines = size.cut(text);
        let mut sent = String::new();
        // A terminal that was resized has moved its lines about.
        if self.size != size {
            sent.push_str("\x1b[2J");
            self.size = size;
            self.lines.clear();
        }
        for (row, line) in lines.iter().enumerate() {
            if self.lines.get(row) != Some(line) {
                sent.push_str(&format!("\x1b[{};1H\x1b[K{line}", row + 1));
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
            let sent = screen.update(&text, Size::of_stdout());
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

    const WINDOW: Size = Size {
        columns: 80,
        rows: 24,
    };

    #[test]
    fn only_what_changed_is_sent() {
        let mut screen = Screen::default();
        let first = screen.update("one\ntwo\nthree", WINDOW);
        assert!(
            first.contains("one") && first.contains("three"),
            "{first:?}"
        );
        assert_eq!(
            screen.update("one\ntwo\nthree", WINDOW),
            "",
            "nothing changed"
        );
        let second = screen.update("one\n2\nthree", WINDOW);
        assert!(second.contains('2') && !second.contains("one") && !second.contains("three"));
        let shorter = screen.update("one", WINDOW);
        assert!(shorter.contains("\x1b[2;1H\x1b[J"), "{shorter:?}");
        let resized = Size { rows: 30, ..WINDOW };
        assert!(screen.update("one", resized).contains("one"), "drawn anew");
    }

    #[test]
    fn what_is_shown_fits_the_window() {
        let text: String = (0..40)
            .map(|n| format!("{n} {}\n", "x".repeat(90)))
            .collect();
        for rows in 1..50 {
            for columns in [1, 40, 80, 200] {
                let lines = Size { columns, rows }.cut(&text);
                assert!(lines.len() < rows.max(2), "{} of {rows}", lines.len());
                assert!(lines.iter().all(|line| line.chars().count() <= columns));
            }
        }
        let lines = WINDOW.cut(&text);
        assert!(lines[21].starts_with("21 x"), "{lines:?}");
        assert!(lines[22].starts_with("18 more rows"), "{lines:?}");
        let high = Size { rows: 41, ..WINDOW };
        assert!(high.cut(&text)[39].starts_with("39 x"), "all of it");
        assert_eq!(WINDOW.cut("").len(), 0);
    }
}
