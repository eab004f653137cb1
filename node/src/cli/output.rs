//! What a command prints: tables for people, JSON for programs.
//!
//! What this file keeps true: standard output carries results only; everything else goes to
//! standard error. Tables stay within 100 columns. A reader that goes away ends the command quietly.

use super::error::CliResult;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::cell::Cell;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::time::{Duration, Instant};

/// Widest table, in columns.
pub const MAX_WIDTH: u16 = 100;

/// Standard output, buffered.
pub struct Out {
    writer: BufWriter<StdoutLock<'static>>,
}

impl Out {
    /// Takes standard output for the rest of the command.
    #[must_use]
    pub fn new() -> Self {
        Self {
            writer: BufWriter::with_capacity(64 << 10, io::stdout().lock()),
        }
    }

    /// One line of text.
    ///
    /// # Errors
    /// When it cannot be written; a gone reader is [`super::error::CliError::reader_gone`].
    pub fn line(&mut self, text: impl std::fmt::Display) -> CliResult {
        writeln!(self.writer, "{text}")?;
        Ok(())
    }

    /// Bytes as they are, then a newline.
    ///
    /// # Errors
    /// As [`Out::line`].
    pub fn raw_line(&mut self, bytes: &[u8]) -> CliResult {
        self.writer.write_all(bytes)?;
        self.writer.write_all(b"\n")?;
        Ok(())
    }

    /// Bytes as they are.
    ///
    /// # Errors
    /// As [`Out::line`].
    pub fn raw(&mut self, bytes: &[u8]) -> CliResult {
        self.writer.write_all(bytes)?;
        Ok(())
    }

    /// One JSON document on one line.
    ///
    /// # Errors
    /// As [`Out::line`].
    pub fn json(&mut self, value: &impl Serialize) -> CliResult {
        serde_json::to_writer(&mut self.writer, value)?;
        self.writer.write_all(b"\n")?;
        Ok(())
    }

    /// For what writes by itself.
    pub fn writer(&mut self) -> &mut dyn Write {
        &mut self.writer
    }

    /// Hands everything to the reader.
    ///
    /// # Errors
    /// As [`Out::line`].
    pub fn flush(&mut self) -> CliResult {
        self.writer.flush()?;
        Ok(())
    }
}

impl Default for Out {
    fn default() -> Self {
        Self::new()
    }
}

/// A table with these column heads; those that begin with `>` are figures, set to the right.
#[must_use]
pub fn table(heads: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(MAX_WIDTH)
        .set_header(heads.iter().map(|head| head.trim_start_matches('>')));
    for (at, head) in heads.iter().enumerate() {
        let column = table.column_mut(at).expect("a head makes a column");
        column.set_padding((0, 2));
        if head.starts_with('>') {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A table as lines, without blanks at their ends.
#[must_use]
pub fn render(table: &Table) -> String {
    table
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Text in lines of at most [`MAX_WIDTH`] columns, those behind the first set in; a word that is longer
/// than that keeps its line.
#[must_use]
pub fn wrap(text: &str) -> String {
    const INDENT: &str = "  ";
    let mut out = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let columns = word.chars().count();
        if width > INDENT.len() && width + 1 + columns > usize::from(MAX_WIDTH) {
            out.push('\n');
            out.push_str(INDENT);
            width = INDENT.len();
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out.push_str(word);
        width += columns;
    }
    out
}

/// Between two lines of progress where standard error is no terminal.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// What long work says on standard error while it goes on: one line that changes on a terminal, a
/// line now and then elsewhere, nothing with `--json`.
pub struct Progress {
    bar: ProgressBar,
    /// When the last line was written, where lines are.
    lines: Option<Cell<Instant>>,
    as_json: bool,
}

impl Progress {
    /// For a command.
    ///
    /// # Panics
    /// Never: the template is a constant.
    #[must_use]
    pub fn new(as_json: bool) -> Self {
        let terminal = io::stderr().is_terminal();
        let bar = if as_json || !terminal {
            ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
        } else {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        };
        let style = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}");
        bar.set_style(style.expect("the template is right"));
        let lines = (!as_json && !terminal).then(|| Cell::new(Instant::now()));
        Self {
            bar,
            lines,
            as_json,
        }
    }

    /// For a command whose results go out meanwhile: where a terminal shows those, they are what
    /// tells how far it is.
    #[must_use]
    pub fn beside_results(as_json: bool) -> Self {
        let progress = Self::new(as_json);
        if io::stdout().is_terminal() {
            progress.bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        progress
    }

    /// Says something that must not be missed, at once, on a line that stays; with `--json` as one
    /// JSON document.
    pub fn note(&self, message: &str) {
        self.bar.suspend(|| {
            if self.as_json {
                eprintln!("{}", serde_json::json!({ "progress": message }));
            } else {
                eprintln!("narad: {message}");
            }
        });
        if let Some(last) = &self.lines {
            last.set(Instant::now());
        }
    }

    /// Says how far it is.
    pub fn say(&self, message: impl Into<String>) {
        let message = message.into();
        if let Some(last) = &self.lines
            && last.get().elapsed() >= LOG_EVERY
        {
            last.set(Instant::now());
            eprintln!("narad: {message}");
        }
        self.show(message);
    }

    /// The same on a terminal alone.
    pub fn show(&self, message: String) {
        self.bar.set_message(message);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Bytes as text for JSON, or as hexadecimal when they are no text: (field name suffix, text).
#[must_use]
pub fn bytes_for_json(bytes: &[u8]) -> (&'static str, String) {
    match std::str::from_utf8(bytes) {
        Ok(text) => ("", text.to_owned()),
        Err(_) => {
            use std::fmt::Write as _;
            let mut hex = String::with_capacity(bytes.len() * 2);
            for byte in bytes {
                write!(hex, "{byte:02x}").expect("a string takes everything");
            }
            ("_hex", hex)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_stay_within_their_width() {
        let mut wide = table(&["id", ">bytes", "reason"]);
        wide.add_row(vec!["n1", "12", &"word ".repeat(60)]);
        let text = render(&wide);
        assert!(text.lines().count() > 2, "long cells wrap:\n{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= usize::from(MAX_WIDTH), "{line}");
        }
    }

    #[test]
    fn long_sentences_wrap_between_words() {
        assert_eq!(wrap("short enough"), "short enough");
        let text = format!("n1 is held by: {}{}", "word ".repeat(60), "x".repeat(120));
        let wrapped = wrap(&text);
        assert_eq!(
            wrapped.split_whitespace().collect::<Vec<_>>(),
            text.split_whitespace().collect::<Vec<_>>()
        );
        for line in wrapped.lines() {
            let fits = line.chars().count() <= usize::from(MAX_WIDTH);
            assert!(fits || line.trim().starts_with("xxx"), "{line}");
        }
        assert!(wrapped.lines().skip(1).all(|line| line.starts_with("  ")));
    }

    #[test]
    fn bytes_that_are_no_text_are_hexadecimal() {
        assert_eq!(bytes_for_json(b"abc"), ("", "abc".to_owned()));
        assert_eq!(bytes_for_json(&[0xff, 0x00]), ("_hex", "ff00".to_owned()));
    }
}
