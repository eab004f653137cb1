//! A write of which the system takes a part. The limit that brings it about is one of the whole process, so
//! this test has a program of its own.

mod common;

use common::*;
use narad_storage::{AppendError, Log, Options};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigHandler, Signal, signal};

#[test]
fn a_write_cut_short_stops_the_log_and_what_was_acked_stays() {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) }.unwrap();
    let dir = Dir::new("short-write");
    run(&dir, |root| async move {
        let big = Options {
            segment_bytes: 64 << 20,
            extent_bytes: 16 << 20,
            ..options()
        };
        let log = Log::create(&root, copy(1), &big).await.unwrap();
        for n in 0..20 {
            log.append(records(n, 1, 30_000), None).await.unwrap();
        }
        let written = log.stats().bytes;
        // Files end in the middle of the next group, on a block.
        let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, written + 8192, hard).unwrap();
        let error = log.append(records(20, 10, 30_000), None).await.unwrap_err();
        let AppendError::Closed { reason } = &error else {
            panic!("{error:?}");
        };
        assert!(
            reason.contains("only ") && reason.contains("were written"),
            "{reason}"
        );
        // It says so, takes nothing more, and goes on with what was acked.
        assert!(log.failed().is_some());
        let again = log.append(records(20, 1, 10), None).await;
        assert!(
            matches!(again, Err(AppendError::Closed { .. })),
            "{again:?}"
        );
        expect_numbers(&log, 0..20, 30_000).await;
        log.close().await.unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, hard, hard).unwrap();

        let (log, report) = Log::open(&root, copy(1), &big).await.unwrap();
        assert_eq!((report.damage.len(), log.end().0), (0, 20), "{report:?}");
        assert!(report.cut.is_some(), "{report:?}");
        log.append(records(20, 10, 30_000), None).await.unwrap();
        expect_numbers(&log, 0..30, 30_000).await;
    });
}
