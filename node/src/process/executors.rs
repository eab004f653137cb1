//! Executors on CPUs.
//!
//! What this file keeps true: every executor is made with the same measured settings; helper
//! threads of a pinned executor are not pinned with it.
//!
//! No queue has `Latency::Matters`: every wake of such a queue writes an eventfd, asleep or not. That an executor
//! does not sleep while it has work is the matter of `wire/src/runtime/parking.rs`.

use crate::config::{Config, Cpus};
use glommio::{
    CpuSet, ExecutorJoinHandle, GlommioError, LocalExecutorBuilder, Placement, PoolPlacement,
};
use nix::sys::resource::Resource;
use std::future::Future;
use std::time::Duration;

/// Registered memory of one executor, in bytes: beyond this, buffers come from the heap. The
/// default pins 10 MiB in each of three rings, which a non-root user may not.
const IO_MEMORY_BYTES: usize = 256 << 10;
/// How long tasks may run before the executor looks at its timers. Whatever completes in the ring for what is urgent
/// ends their turn sooner.
const PREEMPT: Duration = Duration::from_millis(100);
/// Threads for calls that block (rename, remove, truncate), an executor: two, so that the removal
/// of a large copy does not hold up a rename.
const BLOCKING_THREADS: usize = 2;

/// Which CPU each executor gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placements {
    control: Option<usize>,
    shards: Vec<Option<usize>>,
}

impl Placements {
    /// From the configuration: the control core on the first CPU, the shards on the others in
    /// turn, on the first again only where there is no other.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let cpus = match &config.cpus {
            Cpus::None => Vec::new(),
            Cpus::List(list) => list.clone(),
            Cpus::Auto => allowed(),
        };
        Self::over(&cpus, config.shards as usize)
    }

    fn over(cpus: &[usize], shards: usize) -> Self {
        let Some((&control, others)) = cpus.split_first() else {
            return Self {
                control: None,
                shards: vec![None; shards],
            };
        };
        let others = if others.is_empty() {
            std::slice::from_ref(&control)
        } else {
            others
        };
        Self {
            control: Some(control),
            shards: (0..shards)
                .map(|shard| Some(others[shard % others.len()]))
                .collect(),
        }
    }

    /// CPU of the control core; `None` is unpinned.
    #[must_use]
    pub fn control(&self) -> Option<usize> {
        self.control
    }

    /// CPU of one shard; `None` is unpinned.
    #[must_use]
    pub fn shard(&self, shard: usize) -> Option<usize> {
        self.shards[shard]
    }
}

fn allowed() -> Vec<usize> {
    let Ok(set) = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)) else {
        return Vec::new();
    };
    (0..nix::sched::CpuSet::count())
        .filter(|&cpu| set.is_set(cpu).unwrap_or(false))
        .collect()
}

/// Registered memory of the mover, in bytes: the buffers of a copy, received into and written from
/// without the kernel looking up their pages each time. Where the user may lock less, less.
const COPY_MEMORY_BYTES: usize = 16 << 20;
/// An executor locks its memory once for each of its three rings, and a user may lock so much: the
/// mover takes at most this share of it.
const COPY_MEMORY_SHARE: u64 = 16;

/// What the mover registers here.
#[must_use]
fn copy_memory() -> usize {
    let allowed = match nix::sys::resource::getrlimit(Resource::RLIMIT_MEMLOCK) {
        _ if nix::unistd::geteuid().is_root() => u64::MAX,
        Ok((soft, _)) => soft / COPY_MEMORY_SHARE,
        Err(_) => 0,
    };
    let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
    COPY_MEMORY_BYTES.min(allowed).max(IO_MEMORY_BYTES)
}

/// What an executor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Somebody waits for its answers: where its thread shares a processor, it gets it soon.
    Calls,
    /// Gigabytes: it has registered memory for them.
    Copies,
}

/// Starts an executor on a thread of its own, on `cpu` or unpinned.
///
/// # Errors
/// What glommio said; a ring that cannot be made shows when the executor is joined.
pub fn start<F, T>(
    name: &str,
    cpu: Option<usize>,
    work: Work,
    run: impl FnOnce() -> F + Send + 'static,
) -> Result<ExecutorJoinHandle<T>, GlommioError<()>>
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let placement = cpu.map_or(Placement::Unbound, Placement::Fixed);
    let helpers = match cpu {
        None => PoolPlacement::Unbound(BLOCKING_THREADS),
        // They would inherit the executor's CPU.
        Some(_) => PoolPlacement::Fenced(BLOCKING_THREADS, CpuSet::online()?),
    };
    LocalExecutorBuilder::new(placement)
        .name(name)
        .io_memory(match work {
            Work::Calls => IO_MEMORY_BYTES,
            Work::Copies => copy_memory(),
        })
        .preempt_timer(PREEMPT)
        .blocking_thread_pool_placement(helpers)
        .spawn(move || {
            if work == Work::Calls {
                narad_wire::runtime::short_slices();
            }
            run()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_core_comes_first_and_shares_only_when_it_must() {
        let placed = Placements::over(&[4, 5, 6], 3);
        assert_eq!(placed.control(), Some(4));
        assert_eq!(
            (0..3).map(|s| placed.shard(s)).collect::<Vec<_>>(),
            [Some(5), Some(6), Some(5)]
        );
        assert_eq!(Placements::over(&[7], 2).shard(1), Some(7));
        assert_eq!(Placements::over(&[], 2).shard(1), None);
    }
}
