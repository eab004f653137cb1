//! openraft's runtime on glommio: tasks, timers and randomness of the executor that calls it.
//!
//! Keeps true: a panic in a task that Raft spawned becomes the [`JoinError`] of its handle and never reaches the
//! executor, which serves everything else on this core. Channels are in [`channels`].

pub mod channels;

use channels::{LocalMutex, Mpsc, Oneshot, Watch};
use futures::FutureExt;
use glommio::timer::Timer;
use glommio::{LocalExecutor, LocalExecutorBuilder, Placement};
use openraft::{AsyncRuntime, OptionalSend};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// io_uring memory registered by an executor that is created here, in bytes: enough, and small enough for the
/// locked-memory limit of an ordinary user.
const IO_MEMORY_BYTES: usize = 256 << 10;

/// Why a task did not return a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// It panicked, with this message.
    #[error("the task panicked: {0}")]
    Panicked(String),
    /// Its executor went away before it ended.
    #[error("the task was cancelled")]
    Cancelled,
}

/// The text of a panic's payload.
pub fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// The outcome of a task, once it is awaited. Dropping the handle leaves the task running.
pub struct JoinHandle<T> {
    inner: glommio::task::JoinHandle<Result<T, JoinError>>,
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.inner
            .poll_unpin(cx)
            .map(|outcome| outcome.unwrap_or(Err(JoinError::Cancelled)))
    }
}

impl<T> Unpin for JoinHandle<T> {}

/// A future that is ready after its time.
pub struct Sleep {
    until: Instant,
    timer: Option<Timer>,
}

impl Sleep {
    fn until(until: Instant) -> Sleep {
        Sleep { until, timer: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        if now >= self.until {
            return Poll::Ready(());
        }
        let left = self.until - now;
        let timer = self.timer.get_or_insert_with(|| Timer::new(left));
        timer.poll_unpin(cx).map(|_| ())
    }
}

/// A future did not finish in its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct TimedOut;

/// A future with a deadline. The future is polled first: one that is ready wins even at the deadline.
pub struct Timeout<F> {
    sleep: Sleep,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimedOut>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(value) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(value));
        }
        self.sleep.poll_unpin(cx).map(|()| Err(TimedOut))
    }
}

impl<F> Unpin for Timeout<F> {}

/// openraft's runtime. As a value it owns an executor of its own (for tests); as a type it stands for the
/// executor that the caller runs on.
pub struct GlommioRuntime {
    executor: LocalExecutor,
}

impl fmt::Debug for GlommioRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GlommioRuntime")
    }
}

impl AsyncRuntime for GlommioRuntime {
    type JoinError = JoinError;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = TimedOut;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = rand_raft::rngs::ThreadRng;
    type Mpsc = Mpsc;
    type Watch = Watch;
    type Oneshot = Oneshot;
    type Mutex<T: OptionalSend + 'static> = LocalMutex<T>;

    fn spawn<T>(future: T) -> JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let guarded = async move {
            AssertUnwindSafe(future)
                .catch_unwind()
                .await
                .map_err(|payload| {
                    let text = panic_text(&*payload);
                    tracing::error!(panic = %text, "a task of the Raft part panicked");
                    JoinError::Panicked(text)
                })
        };
        JoinHandle {
            inner: glommio::spawn_local(guarded).detach(),
        }
    }

    fn sleep(duration: Duration) -> Sleep {
        Sleep::until(Instant::now() + duration)
    }

    fn sleep_until(deadline: Instant) -> Sleep {
        Sleep::until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Timeout<F> {
        Self::timeout_at(Instant::now() + duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Instant,
        future: F,
    ) -> Timeout<F> {
        Timeout {
            sleep: Sleep::until(deadline),
            future: Box::pin(future),
        }
    }

    fn is_panic(error: &JoinError) -> bool {
        matches!(error, JoinError::Panicked(_))
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        rand_raft::rng()
    }

    fn new(_threads: usize) -> GlommioRuntime {
        let executor = LocalExecutorBuilder::new(Placement::Unbound)
            .io_memory(IO_MEMORY_BYTES)
            .make()
            .expect("an executor needs io_uring and a locked-memory limit of at least 512 KiB");
        GlommioRuntime { executor }
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.executor.run(future)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft_rt::testing::Suite;

    #[test]
    fn the_runtime_suite_of_openraft_passes() {
        Suite::<GlommioRuntime>::test_all();
    }

    #[test]
    fn a_panic_ends_its_task_and_not_the_executor() {
        GlommioRuntime::run(async {
            let bad = GlommioRuntime::spawn(async { panic!("on purpose") });
            let error = bad.await.unwrap_err();
            assert!(GlommioRuntime::is_panic(&error));
            assert!(error.to_string().contains("on purpose"));
            assert_eq!(GlommioRuntime::spawn(async { 7 }).await, Ok(7));
        });
    }
}
