//! Asking several, one after the other, without waiting long for one that hangs.
//!
//! What this file keeps true: where all answer soon, one is asked at a time; one that does not holds the
//! next up for a moment only; and what is bounded in number is bounded in time.

use futures::future::{Either, select};
use futures::stream::{FuturesUnordered, StreamExt};
use std::future::Future;
use std::time::{Duration, Instant};

/// The first answer that is something. The next one is asked when an answer was nothing, or when
/// `hurry` has passed without one; when all are asked, `patience` is left for what is under way.
/// Questions that are not waited for any more are dropped.
pub(crate) async fn first_of<T, Q: Future<Output = Option<T>>>(
    questions: impl IntoIterator<Item = Q>,
    hurry: Duration,
    patience: Duration,
) -> Option<T> {
    let mut questions = questions.into_iter();
    let mut asked = FuturesUnordered::new();
    let mut until = None;
    loop {
        let pause = match questions.next() {
            Some(question) => {
                asked.push(question);
                hurry
            }
            None => {
                let until = *until.get_or_insert_with(|| Instant::now() + patience);
                until.saturating_duration_since(Instant::now())
            }
        };
        let sleep = Box::pin(glommio::timer::sleep(pause));
        match select(asked.next(), sleep).await {
            Either::Left((Some(Some(answer)), _)) => return Some(answer),
            Either::Left((Some(None), _)) => {}
            // Nobody is left to ask or to wait for.
            Either::Left((None, _)) => return None,
            Either::Right(_) if until.is_some() => return None,
            Either::Right(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::LocalBoxFuture;
    use glommio::LocalExecutor;
    use std::cell::Cell;

    const NEVER: Duration = Duration::from_secs(1_000_000);
    const SOON: Duration = Duration::from_millis(1);

    fn run<T>(work: impl Future<Output = T>) -> T {
        LocalExecutor::default().run(work)
    }

    #[test]
    fn one_at_a_time_where_all_answer() {
        let asked = Cell::new(0);
        let questions = [None, None, Some("found"), Some("too much")].map(|answer| {
            let asked = &asked;
            async move {
                asked.set(asked.get() + 1);
                answer
            }
        });
        // No pause of these would ever end.
        let found = run(first_of(questions, NEVER, NEVER));
        assert_eq!((found, asked.get()), (Some("found"), 3));
    }

    #[test]
    fn one_that_hangs_is_not_waited_for() {
        let hangs = || -> LocalBoxFuture<'_, Option<u8>> { Box::pin(std::future::pending()) };
        let says = |answer| -> LocalBoxFuture<'_, Option<u8>> { Box::pin(async move { answer }) };
        let questions = [hangs(), says(None), hangs(), says(Some(7))];
        assert_eq!(run(first_of(questions, SOON, NEVER)), Some(7));
        // Those that hang end nothing, and are left alone at last.
        assert_eq!(run(first_of([hangs(), says(None)], SOON, SOON)), None);
        assert_eq!(run(first_of([says(None)], SOON, NEVER)), None);
        assert_eq!(
            run(first_of(
                Vec::<LocalBoxFuture<'_, Option<u8>>>::new(),
                SOON,
                NEVER
            )),
            None
        );
    }
}
