//! Two sides that take turns: the log and the raw loop.
//!
//! What this file keeps true: each pair is measured back to back; who goes first changes from pair to
//! pair; the first pair warms up and is not counted.

use serde::Serialize;
use std::future::Future;
use std::time::{Duration, Instant};

/// One side of one pair.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Payload bytes.
    pub bytes: u64,
    /// Seconds on the clock.
    pub seconds: f64,
    /// Seconds of processor time, of the whole process.
    pub cpu_seconds: f64,
    /// Median time of one operation, in µs, where they are done one by one.
    pub each_us: f64,
}

/// Both sides, pair by pair.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// The log's.
    pub log: Vec<Sample>,
    /// The raw loop's.
    pub raw: Vec<Sample>,
}

/// What both sides came to, for programs.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sides {
    /// Median of the log's MiB/s.
    pub log_mib_s: f64,
    /// Median of the raw loop's MiB/s.
    pub raw_mib_s: f64,
    /// Median time of one operation of the log, in µs; 0 where none was taken.
    pub log_us: f64,
    /// Of the raw loop.
    pub raw_us: f64,
    /// Processor seconds per GiB of the log.
    pub log_cpu_s_gib: f64,
    /// Of the raw loop.
    pub raw_cpu_s_gib: f64,
}

/// Times work: clock and processor.
#[derive(Debug)]
pub struct Watch {
    began: Instant,
    cpu: Duration,
}

impl Watch {
    /// Starts.
    #[must_use]
    pub fn start() -> Self {
        Self {
            began: Instant::now(),
            cpu: cpu_time(),
        }
    }

    /// Ends; `bytes` were moved.
    #[must_use]
    pub fn stop(self, bytes: u64) -> Sample {
        Sample {
            bytes,
            seconds: self.began.elapsed().as_secs_f64(),
            cpu_seconds: (cpu_time() - self.cpu).as_secs_f64(),
            each_us: 0.0,
        }
    }
}

/// Processor time of this process, with its kernel workers.
fn cpu_time() -> Duration {
    use nix::sys::resource::{UsageWho, getrusage};
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("a process may ask for its own usage");
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|t| {
            Duration::from_secs(t.tv_sec().unsigned_abs())
                + Duration::from_micros(t.tv_usec().unsigned_abs())
        })
        .sum()
}

/// Lets both sides take turns, `pairs` times and once before that for warming up.
///
/// # Errors
/// The first error of a side.
pub async fn take_turns<E, L: Future<Output = Result<Sample, E>>>(
    pairs: usize,
    mut log: impl FnMut() -> L,
    mut raw: impl FnMut() -> Result<Sample, E>,
) -> Result<Turns, E> {
    let mut turns = Turns::default();
    for n in 0..=pairs {
        let (l, r) = if n % 2 == 0 {
            let r = raw()?;
            (log().await?, r)
        } else {
            let l = log().await?;
            (l, raw()?)
        };
        if n > 0 {
            turns.log.push(l);
            turns.raw.push(r);
        }
    }
    Ok(turns)
}

impl Turns {
    /// Bandwidth of the log over that of the raw loop, pair by pair.
    #[must_use]
    pub fn bandwidth(&self) -> Vec<f64> {
        self.ratio(|s| s.bytes as f64 / s.seconds)
    }

    /// Median time of one operation of the log over that of the raw loop, pair by pair.
    #[must_use]
    pub fn latency(&self) -> Vec<f64> {
        self.ratio(|s| s.each_us)
    }

    fn ratio(&self, of: impl Fn(&Sample) -> f64) -> Vec<f64> {
        let sides = self.log.iter().zip(&self.raw);
        sides.map(|(l, r)| of(l) / of(r)).collect()
    }

    /// Medians of both sides.
    #[must_use]
    pub fn sides(&self) -> Sides {
        let of = |samples: &[Sample], f: fn(&Sample) -> f64| {
            median(&mut samples.iter().map(f).collect::<Vec<_>>())
        };
        let rate = |s: &Sample| s.bytes as f64 / s.seconds / f64::from(1 << 20);
        let cpu = |s: &Sample| s.cpu_seconds / (s.bytes as f64 / f64::from(1 << 30));
        Sides {
            log_mib_s: of(&self.log, rate),
            raw_mib_s: of(&self.raw, rate),
            log_us: of(&self.log, |s| s.each_us),
            raw_us: of(&self.raw, |s| s.each_us),
            log_cpu_s_gib: of(&self.log, cpu),
            raw_cpu_s_gib: of(&self.raw, cpu),
        }
    }
}

/// The middle of some values; 0 of none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use std::cell::RefCell;

    #[test]
    fn sides_take_turns_and_the_first_pair_is_not_counted() {
        let order = RefCell::new(String::new());
        let sample = |seconds: f64| Sample {
            bytes: 1 << 20,
            seconds,
            ..Sample::default()
        };
        let turns = take_turns::<(), _>(
            2,
            || {
                order.borrow_mut().push('l');
                std::future::ready(Ok(sample(2.0)))
            },
            || {
                order.borrow_mut().push('r');
                Ok(sample(1.0))
            },
        );
        let turns = turns.now_or_never().unwrap().unwrap();
        assert_eq!(*order.borrow(), "rllrrl");
        assert_eq!(turns.bandwidth(), [0.5, 0.5]);
        assert_eq!(turns.sides().raw_mib_s, 1.0);
    }
}
