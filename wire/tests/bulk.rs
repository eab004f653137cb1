//! Ranges of the bulk channel on real files (O_DIRECT, a real disk) and real sockets.
//!
//! What this file keeps true: a copy is byte-exact, leaves the page cache alone, and nothing is
//! sent that the session does not allow.

mod bulk_source;

use bulk_source::{
    MOVE, Source, TOKEN, bytes, copy, key, range, refused, run, segment, segment_file,
};
use narad_core::ids::MoveId;
use narad_wire::bulk::{BulkError, BulkStatus, BulkStream, CopyPath};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Pages of the file in the page cache.
fn cached_pages(path: &Path) -> (usize, usize) {
    use nix::libc;
    let file = File::open(path).unwrap();
    let len = usize::try_from(file.metadata().unwrap().len()).unwrap();
    let pages = len.div_ceil(4096);
    let mut seen = vec![0u8; pages];
    // SAFETY: a read-only private mapping of a whole file, unmapped before the file is closed;
    // mincore writes one byte a page into a buffer of that many.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mincore(at, len, seen.as_mut_ptr()), 0);
        libc::munmap(at, len);
    }
    (seen.iter().filter(|page| **page & 1 == 1).count(), pages)
}

fn drop_from_cache(path: &Path) {
    let file = File::open(path).unwrap();
    nix::fcntl::posix_fadvise(
        &file,
        0,
        0,
        nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED,
    )
    .unwrap();
}

fn copies_exactly_without_the_page_cache(path: CopyPath) {
    let source = Source::start(path.as_str(), |o| o.path = Some(path));
    assert_eq!(source.server.path(), path);
    let content = bytes((9 << 20) + 512 * 7, 1);
    let file = source.offer(0, &content);
    drop_from_cache(&file);
    let (before, pages) = cached_pages(&file);
    let len = content.len() as u64;
    let got = run(copy(&source.addr, 0, len, 5 << 20));
    assert!(got == content, "the copy differs");
    let (after, _) = cached_pages(&file);
    assert!(
        after <= before,
        "the copy put {after} of {pages} pages into the page cache, {before} were there"
    );
    // A reader through the cache shows that the check can fail.
    std::fs::read(&file).unwrap();
    assert!(cached_pages(&file).0 > after);
    let stats = source.server.stats();
    assert_eq!((stats.sent_bytes, stats.ranges), (len, 2));
    source.end();
}

#[test]
fn splice_copies_exactly_without_the_page_cache() {
    copies_exactly_without_the_page_cache(CopyPath::Splice);
}

#[test]
fn pread_copies_exactly_without_the_page_cache() {
    copies_exactly_without_the_page_cache(CopyPath::PreadSend);
}

#[test]
fn the_probe_finds_splice_on_a_disk_and_says_so_where_it_cannot_look() {
    let source = Source::start("probe", |_| {});
    assert_eq!(source.server.path(), CopyPath::Splice);
    let left: Vec<_> = std::fs::read_dir(&source.dir).unwrap().collect();
    assert!(left.is_empty(), "the probe leaves nothing behind");
    let content = bytes(1 << 20, 2);
    source.offer(0, &content);
    assert!(run(copy(&source.addr, 0, 1 << 20, 1 << 20)) == content);
    source.end();
    let nowhere = Source::start("nowhere", |o| o.dir.push("missing"));
    assert_eq!(nowhere.server.path(), CopyPath::PreadSend);
    nowhere.offer(0, &content);
    assert!(run(copy(&nowhere.addr, 0, 1 << 20, 1 << 20)) == content);
    nowhere.end();
}

#[test]
fn concurrent_streams_do_not_mix() {
    let source = Source::start("concurrent", |_| {});
    let contents: Vec<Vec<u8>> = (0..4)
        .map(|i| bytes((3 << 20) + 512 * i, 10 + i as u64))
        .collect();
    source.sessions.open(key(), MOVE, TOKEN).unwrap();
    let mut published = Vec::new();
    for (base, content) in (0u64..).zip(&contents) {
        let path = source.dir.join(format!("{base}.seg"));
        segment_file(&path, content);
        published.push((segment(base), path, content.len() as u64));
    }
    source.sessions.publish(key(), MOVE, published);
    let got = run(async {
        let copies = (0u64..).zip(&contents).map(|(base, content)| {
            copy(&source.addr, base, content.len() as u64, 700 << 10 & !511)
        });
        futures::future::join_all(copies).await
    });
    assert!(got == contents, "a copy differs");
    source.end();
}

#[test]
fn refusals_are_typed_and_leave_the_stream_usable() {
    let source = Source::start("refusals", |_| {});
    let content = bytes(8192, 3);
    let file = source.offer(0, &content);
    // The file is longer than what is durable: the rest must not leave the node.
    let mut longer = content.clone();
    longer.extend_from_slice(&bytes(8192, 4));
    segment_file(&file, &longer);
    run(async {
        let mut s = BulkStream::connect(&source.addr).await.unwrap();
        let beyond = refused(&mut s, range(0, 8192, 512)).await;
        assert_eq!(beyond, (BulkStatus::BeyondDurable, 8192));
        let across = refused(&mut s, range(0, 4096, 8192)).await;
        assert_eq!(across, (BulkStatus::BeyondDurable, 8192));
        let mut wrong = range(0, 0, 512);
        wrong.token ^= 1;
        assert_eq!(refused(&mut s, wrong).await.0, BulkStatus::WrongToken);
        let mut other = range(0, 0, 512);
        other.move_id = MoveId(41);
        assert_eq!(refused(&mut s, other).await.0, BulkStatus::NoSession);
        let nothing = refused(&mut s, range(77, 0, 512)).await;
        assert_eq!(nothing.0, BulkStatus::NoSegment);
        // Refused and granted ranges in one pipeline keep their order.
        s.request(range(0, 0, 4096)).await.unwrap();
        s.request(range(77, 0, 512)).await.unwrap();
        s.request(range(0, 4096, 4096)).await.unwrap();
        let mut buf = vec![0; 8192];
        assert_eq!(s.read_into(&mut buf[..4096]).await.unwrap(), 4096);
        assert!(matches!(
            s.read_into(&mut buf[4096..]).await,
            Err(BulkError::Refused {
                status: BulkStatus::NoSegment,
                ..
            })
        ));
        assert_eq!(s.read_into(&mut buf[4096..]).await.unwrap(), 4096);
        assert!(buf == content);
        source.sessions.close(key(), MOVE);
        let closed = refused(&mut s, range(0, 0, 512)).await;
        assert_eq!(closed.0, BulkStatus::NoSession);
        source.sessions.open(key(), MOVE, TOKEN).unwrap();
        let gone = source.dir.join("gone.seg");
        source.publish(0, &gone, 8192);
        assert_eq!(refused(&mut s, range(0, 0, 512)).await.0, BulkStatus::Io);
        // A malformed range ends the stream, with a typed answer first.
        assert_eq!(
            refused(&mut s, range(0, 1, 512)).await.0,
            BulkStatus::BadRequest
        );
        let after = s.request(range(0, 0, 512)).await;
        assert!(matches!(after, Err(BulkError::Broken)));
    });
    assert_eq!(source.server.stats().refused, 9);
    source.end();
}

#[test]
fn a_file_that_grows_between_requests_is_followed() {
    let source = Source::start("grow", |_| {});
    let all = bytes(6 << 20, 5);
    let file = source.offer(0, &all[..1 << 20]);
    run(async {
        let mut s = BulkStream::connect(&source.addr).await.unwrap();
        let mut got = Vec::new();
        let mut buf = vec![0; 1 << 20];
        for step in 0..6u64 {
            if step > 0 {
                let mut out = File::options().append(true).open(&file).unwrap();
                let at = usize::try_from(step << 20).unwrap();
                out.write_all(&all[at..at + (1 << 20)]).unwrap();
                out.sync_all().unwrap();
                let early = refused(&mut s, range(0, step << 20, 1 << 20)).await;
                assert_eq!(early, (BulkStatus::BeyondDurable, step << 20));
                source.publish(0, &file, (step + 1) << 20);
            }
            s.request(range(0, step << 20, 1 << 20)).await.unwrap();
            assert_eq!(s.read_into(&mut buf).await.unwrap(), 1 << 20);
            got.extend_from_slice(&buf);
        }
        assert!(got == all);
    });
    source.end();
}

#[test]
fn a_broken_range_says_how_many_bytes_came() {
    let source = Source::start("broken", |_| {});
    let content = bytes(2 << 20, 6);
    let file = source.offer(0, &content);
    // Published, but not there: the source finds out in the middle of the range.
    source.publish(0, &file, 4 << 20);
    run(async {
        let mut s = BulkStream::connect(&source.addr).await.unwrap();
        s.request(range(0, 0, 4 << 20)).await.unwrap();
        let mut buf = vec![0; 512 << 10];
        let mut got = Vec::new();
        let broken = loop {
            match s.read_into(&mut buf).await {
                Ok(n) => got.extend_from_slice(&buf[..n]),
                Err(error) => break error,
            }
        };
        let BulkError::Interrupted {
            request, received, ..
        } = broken
        else {
            panic!("{broken:?}");
        };
        assert_eq!(request, range(0, 0, 4 << 20));
        assert_eq!(received, 2 << 20);
        assert!(got == content);
        assert!(matches!(
            s.read_into(&mut buf).await,
            Err(BulkError::Broken)
        ));
    });
    assert_eq!(source.server.stats().interrupted, 1);
    source.end();
}
