//! A disk that is really full: a small ext4 on a loop device.

mod common;
#[path = "common/small_disk.rs"]
mod small_disk;

use common::*;
use narad_core::ids::Offset;
use narad_storage::{AppendError, Log, Options};

#[test]
fn a_full_disk_loses_nothing_and_goes_on_when_there_is_room() {
    let dir = Dir::new("full-disk");
    let at = dir.path().join("disk");
    let Some(mount) = small_disk::small_disk(&dir.path().join("image"), &at, 48 << 20) else {
        return;
    };
    let root = mount.0.clone();
    run(&dir, move |_| async move {
        narad_storage::prepare_executor(&root).await.unwrap();
        for (case, reserve) in [0, 4 << 20].into_iter().enumerate() {
            let root = root.join(case.to_string());
            let options = Options {
                segment_bytes: 4 << 20,
                extent_bytes: 1 << 20,
                reserve_bytes: reserve,
                cache_bytes: 0,
                ..options()
            };
            let log = Log::create(&root, copy(1), &options).await.unwrap();
            let mut n = 0;
            let full = loop {
                match log.append(records(n, 20, 10_000), None).await {
                    Ok(_) => n += 20,
                    Err(error) => break error,
                }
            };
            assert!(matches!(full, AppendError::Full { .. }), "{full:?}");
            assert!(n > 500, "{n}");
            assert_eq!(log.failed(), None);
            expect_numbers(&log, 0..n, 10_000).await;
            if reserve > 0 {
                // What was kept free is there for the small things.
                log.set_frontier(Offset(n / 2));
                log.persist_meta().await.unwrap();
            }
            let gone = log.retain(None, Some(10 << 20)).await;
            assert!(gone.as_ref().is_ok_and(|g| *g > 0), "{gone:?}");
            log.append(records(n, 20, 10_000), None).await.unwrap();
            let start = log.start().0;
            expect_numbers(&log, start..n + 20, 10_000).await;
            log.close().await.unwrap();
            let (log, report) = Log::open(&root, copy(1), &options).await.unwrap();
            assert_eq!((report.damage.len(), report.cut), (0, None));
            expect_numbers(&log, start..n + 20, 10_000).await;
            log.retain(None, Some(0)).await.unwrap();
            drop(log);
            narad_storage::layout::delete_copy(&root, copy(1))
                .await
                .unwrap();
        }
    });
}
