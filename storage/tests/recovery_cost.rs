//! What recovery reads: what was written, and not the space that was only reserved; and what stands behind such
//! space is found all the same.

mod common;

use common::*;
use narad_core::copy::SegmentId;
use narad_core::ids::{Epoch, Offset};
use narad_storage::format::frame::FrameHeader;
use narad_storage::format::segment::{Owner, SegmentIdent};
use narad_storage::{Cut, Log, Options, Record};
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

fn large() -> Options {
    Options {
        segment_bytes: 256 * MIB,
        extent_bytes: 64 * MIB,
        ..options()
    }
}

/// A log of `count` records of 100 kB whose process dies: written and reserved bytes of its segment.
async fn died(root: &Path, count: u64) -> (u64, PathBuf) {
    let log = Log::create(root, copy(1), &large()).await.unwrap();
    for n in 0..count {
        log.append(records(n, 1, 100_000), None).await.unwrap();
    }
    log.settle().await;
    let written = log.stats().bytes;
    let file = segment_files(log.dir()).pop().unwrap();
    // Space is reserved ahead in the background.
    while std::fs::metadata(&file).unwrap().len() < written + 8 * MIB {
        glommio::timer::sleep(std::time::Duration::from_millis(5)).await;
    }
    (written, file)
}

#[test]
fn a_crash_costs_reading_what_was_written_however_much_was_reserved() {
    let dir = Dir::new("recovery-cost");
    run(&dir, |root| async move {
        let (written, file) = died(&root, 200).await;
        let reserved = std::fs::metadata(&file).unwrap().len() - written;
        let (log, report) = Log::open(&root, copy(1), &large()).await.unwrap();
        assert_eq!((report.cut, report.damage.len()), (None, 0), "{report:?}");
        assert!(report.bytes_read >= written, "{report:?}");
        // Zeros that were written ahead of small appends, if any, and the rest of a page.
        let more = report.bytes_read - written;
        assert!(more <= MIB && more < reserved / 4, "{more} of {reserved}");
        expect_numbers(&log, 0..200, 100_000).await;
        // Appends go on where they ended.
        log.append(records(200, 1, 100_000), None).await.unwrap();
        expect_numbers(&log, 0..201, 100_000).await;
    });
}

/// A frame with one record, as a later part of a group would be.
fn frame(base: u64, durable: u64) -> Vec<u8> {
    let ident = SegmentIdent {
        owner: Owner::Partition(key()),
        id: SegmentId {
            base: Offset(0),
            epoch: Epoch(1),
        },
    };
    let one: Record = record(base, 600);
    let mut payload = Vec::new();
    one.encode(one.time, &mut |b| payload.extend_from_slice(b));
    let header = FrameHeader {
        payload_len: payload.len() as u32,
        payload_crc: crc32c::crc32c_append(ident.seed(), &payload),
        record_count: 1,
        base: Offset(base),
        durable_end: Offset(durable),
        first_time: one.time,
        last_time: one.time,
        origin: None,
    };
    [&header.encode(ident.seed())[..], &payload].concat()
}

#[test]
fn what_survived_behind_space_that_was_never_written_is_found() {
    let dir = Dir::new("recovery-behind");
    run(&dir, |root| async move {
        // A group of which only a frame far behind survived: it was never acked, and goes.
        let torn = root.join("torn");
        let (written, file) = died(&torn, 100).await;
        let far = (written + 6 * MIB).next_multiple_of(4096);
        patch(&file, far, &frame(110, 100));
        let (log, report) = Log::open(&torn, copy(1), &large()).await.unwrap();
        let cut = Cut {
            segment: SegmentId {
                base: Offset(0),
                epoch: Epoch(1),
            },
            at: report.cut.unwrap().at,
            end: Offset(100),
        };
        assert_eq!((report.cut, report.damage.len()), (Some(cut), 0));
        // Read a second time without what was cut off.
        assert!(cut.at <= written && report.bytes_read < 2 * written + 2 * MIB);
        log.append(records(100, 1, 100_000), None).await.unwrap();
        drop(log);
        let (log, report) = Log::open(&torn, copy(1), &large()).await.unwrap();
        assert_eq!((report.cut, report.damage.len()), (None, 0), "{report:?}");
        expect_numbers(&log, 0..101, 100_000).await;

        // One that says that everything before it was durable: the disk has lost it, and nothing is cut.
        let lost = root.join("lost");
        let (written, file) = died(&lost, 100).await;
        let far = (written + 6 * MIB).next_multiple_of(4096);
        patch(&file, far, &frame(110, 110));
        let (log, report) = Log::open(&lost, copy(1), &large()).await.unwrap();
        assert_eq!((report.cut, report.damage.len()), (None, 1), "{report:?}");
        let damage = report.damage[0];
        assert_eq!((damage.from, damage.until), (Offset(100), Offset(110)));
        let (got, skipped) = read_all(&log).await;
        assert_eq!((got.len(), skipped), (101, 10));
        assert_eq!(got.last().unwrap(), &(110, record(110, 600)));
    });
}
