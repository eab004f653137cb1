//! Records from a file or standard input, one a line, or generated; read on a thread of its own so
//! that a slow source never holds up the connection.
//!
//! What this file keeps true: memory is bounded (a batch is bounded by count and bytes, and few
//! batches wait); a line that is too long is an error with its number, never cut.

use super::error::{CliError, CliResult};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Stdin};
use std::path::Path;
use tokio::sync::mpsc;

/// Records of one batch at most: one call carries them, well inside the node's limit.
pub const BATCH_RECORDS: usize = 2_000;
/// Bytes of one batch, after which it is closed: small enough to share group commits with others.
pub const BATCH_BYTES: usize = 1 << 20;
/// Batches read ahead of the ones that are being sent.
const BATCHES_AHEAD: usize = 2;
/// Buffer of the input.
const READ_BUFFER_BYTES: usize = 256 << 10;

/// Lines that go to the cluster in one call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Number of its first record, from 1: the line number.
    pub first: u64,
    /// The values.
    pub values: Vec<Vec<u8>>,
}

impl Batch {
    /// Bytes of all records, each with a key of `key_bytes`.
    #[must_use]
    pub fn bytes(&self, key_bytes: usize) -> usize {
        self.values
            .iter()
            .map(|value| value.len() + key_bytes)
            .sum()
    }
}

/// Where records come from.
#[derive(Debug)]
pub enum Source {
    /// Standard input.
    Stdin,
    /// A file.
    File(File),
    /// So many records of so many bytes.
    Generated {
        /// How many.
        count: u64,
        /// How large.
        size: usize,
    },
}

/// What bounds the batches.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Longest value.
    pub record_max: usize,
    /// A batch is closed when its records have so many bytes.
    pub batch_bytes: usize,
    /// Bytes of the key that every record gets.
    pub key_bytes: usize,
}

impl Source {
    /// Opens a file.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn file(path: &Path) -> CliResult<Self> {
        let file = File::open(path).map_err(|error| CliError::file(path, &error))?;
        Ok(Self::File(file))
    }

    /// Starts reading, in batches of at most [`BATCH_RECORDS`] and within `bounds`. The receiver ends after the last batch, or after an error.
    ///
    /// # Panics
    /// When no thread can be made.
    #[must_use]
    pub fn start(self, bounds: Bounds) -> mpsc::Receiver<CliResult<Batch>> {
        let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
        let send = move |batch| sender.blocking_send(batch).is_ok();
        std::thread::Builder::new()
            .name("input".into())
            .spawn(move || match self {
                Self::Stdin => read(
                    BufReader::<Stdin>::with_capacity(READ_BUFFER_BYTES, io::stdin()),
                    bounds,
                    send,
                ),
                Self::File(file) => {
                    read(
                        BufReader::with_capacity(READ_BUFFER_BYTES, file),
                        bounds,
                        send,
                    );
                }
                Self::Generated { count, size } => generate(count, size, bounds, send),
            })
            .expect("a thread for the input can be made");
        receiver
    }
}

fn too_long(line: u64, bounds: Bounds) -> CliError {
    let Bounds {
        record_max,
        key_bytes,
        ..
    } = bounds;
    let beside = match key_bytes {
        0 => "",
        _ => " beside its key",
    };
    let most = record_max + key_bytes >= narad_core::defaults::RECORD_MAX_BYTES as usize;
    CliError::new(
        "too_large",
        format!("line {line} has more than {record_max} bytes, the largest record{beside}"),
        if most {
            "split it, or keep it elsewhere and send its name: no topic takes larger records"
        } else {
            "split it, or raise the topic's limit: narad topic alter TOPIC --max-record-bytes, 1MiB at most"
        },
    )
}

fn read<R: Read>(
    mut input: BufReader<R>,
    bounds: Bounds,
    mut send: impl FnMut(CliResult<Batch>) -> bool,
) {
    let mut batch = Batch {
        first: 1,
        ..Batch::default()
    };
    let (mut line, mut bytes) = (0_u64, 0);
    loop {
        let mut value = Vec::new();
        let bound = bounds.record_max as u64 + 2;
        match input.by_ref().take(bound).read_until(b'\n', &mut value) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                send(Err(CliError::new(
                    "input",
                    format!("cannot read the input after line {line}: {error}"),
                    "check the file or pipe; what was read before has been sent",
                )));
                return;
            }
        }
        line += 1;
        if value.last() == Some(&b'\n') {
            value.pop();
        }
        if value.len() > bounds.record_max {
            if !batch.values.is_empty() {
                send(Ok(batch));
            }
            send(Err(too_long(line, bounds)));
            return;
        }
        bytes += value.len() + bounds.key_bytes;
        batch.values.push(value);
        // Whoever types or pipes slowly wants each line to leave at once; a full buffer means that
        // more is there already and is worth waiting for.
        let more_is_here = input.buffer().contains(&b'\n');
        if batch.values.len() >= BATCH_RECORDS || bytes >= bounds.batch_bytes || !more_is_here {
            let next = Batch {
                first: line + 1,
                ..Batch::default()
            };
            bytes = 0;
            if !send(Ok(std::mem::replace(&mut batch, next))) {
                return;
            }
        }
    }
    if !batch.values.is_empty() {
        send(Ok(batch));
    }
}

fn generate(
    count: u64,
    size: usize,
    bounds: Bounds,
    mut send: impl FnMut(CliResult<Batch>) -> bool,
) {
    if size > bounds.record_max {
        send(Err(CliError::usage(
            format!(
                "--size is more than {} bytes, the largest record",
                bounds.record_max
            ),
            "choose a smaller --size",
        )));
        return;
    }
    let record = (size + bounds.key_bytes).max(1);
    let most = BATCH_RECORDS.min((bounds.batch_bytes / record).max(1)) as u64;
    let mut at = 0;
    while at < count {
        let records = most.min(count - at);
        let values = (at..at + records)
            .map(|number| generated(number, size))
            .collect();
        if !send(Ok(Batch {
            first: at + 1,
            values,
        })) {
            return;
        }
        at += records;
    }
}

/// A record of exactly `size` bytes that begins with its number, as far as that fits.
fn generated(number: u64, size: usize) -> Vec<u8> {
    let mut value = format!("{number:020} ").into_bytes();
    value.truncate(size);
    let letters = (0..).map(|at: u64| b'a' + u8::try_from((at + number) % 26).expect("a letter"));
    value.extend(letters.take(size - value.len()));
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(record_max: usize, key_bytes: usize) -> Bounds {
        Bounds {
            record_max,
            batch_bytes: BATCH_BYTES,
            key_bytes,
        }
    }

    fn all(input: &[u8], record_max: usize) -> Vec<CliResult<Batch>> {
        let mut got = Vec::new();
        let input = BufReader::with_capacity(64, input);
        read(input, bounds(record_max, 0), |batch| {
            got.push(batch);
            true
        });
        got
    }

    fn values(batches: Vec<CliResult<Batch>>) -> Vec<Vec<u8>> {
        let batches = batches.into_iter().map(|batch| batch.expect("read"));
        batches.flat_map(|batch| batch.values).collect()
    }

    #[test]
    fn lines_are_taken_as_they_are() {
        let got = values(all(b"one\n\n\xff two\r\nlast", 100));
        assert_eq!(got, [&b"one"[..], b"", b"\xff two\r", b"last"]);
        assert!(all(b"", 100).is_empty());
    }

    #[test]
    fn batches_are_bounded_and_numbered() {
        let input = b"x\n".repeat(3 * BATCH_RECORDS);
        let mut got = Vec::new();
        let input = BufReader::with_capacity(1 << 20, &input[..]);
        read(input, bounds(10, 0), |batch| {
            got.push(batch.expect("read"));
            true
        });
        assert!(got.iter().all(|batch| batch.values.len() <= BATCH_RECORDS));
        let firsts: Vec<u64> = got.iter().map(|batch| batch.first).collect();
        assert_eq!(firsts, [1, 2001, 4001]);
    }

    #[test]
    fn keys_count_in_the_bytes_of_a_batch() {
        let key_bytes = 10_000;
        let most = |batch: CliResult<Batch>| {
            let bytes = batch.expect("read").bytes(key_bytes);
            assert!(bytes <= BATCH_BYTES + key_bytes + 10, "{bytes}");
            true
        };
        let input = b"x\n".repeat(BATCH_RECORDS);
        let input = BufReader::with_capacity(1 << 20, &input[..]);
        read(input, bounds(10, key_bytes), most);
        generate(BATCH_RECORDS as u64, 10, bounds(10, key_bytes), most);
    }

    #[test]
    fn a_line_that_is_too_long_is_named() {
        let mut got = all(b"ok\n12345678901\nnever", 10);
        let error = got.pop().expect("an end").expect_err("too long");
        assert!(error.message.contains("line 2"), "{error}");
        assert!(error.hint.contains("topic alter"), "{}", error.hint);
        let most = narad_core::defaults::RECORD_MAX_BYTES as usize;
        let error = too_long(1, bounds(most - 3, 3));
        assert!(error.hint.contains("no topic takes"), "{}", error.hint);
        assert_eq!(values(got), [b"ok"]);
        assert_eq!(
            values(all(b"1234567890\n1234567890", 10)).len(),
            2,
            "the limit itself is allowed"
        );
    }

    #[test]
    fn generated_records_have_their_size() {
        let mut sizes = Vec::new();
        generate(5, 33, bounds(100, 0), |batch| {
            sizes.extend(batch.expect("made").values.iter().map(Vec::len));
            true
        });
        assert_eq!(sizes, [33; 5]);
        assert_eq!(generated(3, 4), b"0000");
        assert_ne!(generated(3, 64), generated(4, 64));
    }
}
