//! Processor time of other processes.
//!
//! What this file keeps true: user and system time of all threads, to the nanosecond, as the kernel
//! counts it; a process that cannot be asked is `None`, never 0.

use crate::cpu::process;

/// Processes whose time is added up.
#[derive(Clone, Debug, Default)]
pub struct Cpu(Vec<u32>);

impl Cpu {
    /// Of these processes; none: nothing is known.
    #[must_use]
    pub fn of(pids: Vec<u32>) -> Self {
        Self(pids)
    }

    /// Seconds that they have used until now, together.
    #[must_use]
    pub fn seconds(&self) -> Option<f64> {
        if self.0.is_empty() {
            return None;
        }
        self.0.iter().copied().map(process).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::Cpu;

    #[test]
    fn this_process_uses_time_and_nobody_uses_none() {
        let cpu = Cpu::of(vec![std::process::id()]);
        let before = cpu.seconds().expect("this process runs");
        let mut n = 0_u64;
        while cpu.seconds().expect("this process runs") <= before {
            n = std::hint::black_box(n + 1);
        }
        assert_eq!(Cpu::default().seconds(), None);
    }
}
