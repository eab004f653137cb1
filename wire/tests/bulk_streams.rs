//! How streams of the bulk channel end, are turned away and are slowed down.
//!
//! What this file keeps true: a closed session, a silent side, a full server and a stop all end a
//! stream with a typed error, and no thread stays behind.

mod bulk_source;

use bulk_source::{MOVE, Source, bytes, copy, key, range, refused, run};
use narad_wire::bulk::header::{REQUEST_BYTES, Response};
use narad_wire::bulk::{BulkError, BulkStatus, BulkStream, RangeRequest};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

#[test]
fn closing_the_session_stops_a_range_under_way() {
    let source = Source::start("close", |_| {});
    let len = 32u64 << 20;
    source.offer(0, &bytes(usize::try_from(len).unwrap(), 7));
    run(async {
        let mut s = BulkStream::connect(&source.addr).await.unwrap();
        s.request(range(0, 0, len)).await.unwrap();
        let mut buf = vec![0; 64 << 10];
        s.read_into(&mut buf).await.unwrap();
        // The server is stuck on full socket buffers, which hold less than the range.
        source.sessions.close(key(), MOVE);
        let mut came = buf.len() as u64;
        loop {
            match s.read_into(&mut buf).await {
                Ok(n) => came += n as u64,
                Err(BulkError::Interrupted { received, .. }) => {
                    assert!(received >= came && received < len, "{received}");
                    break;
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    });
    source.end();
}

#[test]
fn idle_streams_end_at_both_sides() {
    let source = Source::start("idle", |o| o.idle = Duration::from_millis(100));
    source.offer(0, &bytes(4096, 8));
    run(async {
        let mut s = BulkStream::connect(&source.addr).await.unwrap();
        s.request(range(0, 0, 4096)).await.unwrap();
        let mut buf = vec![0; 4096];
        s.read_into(&mut buf).await.unwrap();
        while source.server.stats().streams > 0 {
            glommio::timer::sleep(Duration::from_millis(5)).await;
        }
        let _ = s.request(range(0, 0, 4096)).await;
        assert!(matches!(
            s.read_into(&mut buf).await,
            Err(BulkError::Interrupted { received: 0, .. })
        ));
        // A source that says nothing: the listener's backlog takes the connection, nobody answers.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = silent.local_addr().unwrap().to_string();
        let mut s = BulkStream::connect_with(&addr, Duration::from_millis(50))
            .await
            .unwrap();
        s.request(range(0, 0, 4096)).await.unwrap();
        assert!(matches!(
            s.read_into(&mut buf).await,
            Err(BulkError::Interrupted { received: 0, .. })
        ));
    });
    source.end();
}

/// A source that answers one request with these bytes, in pieces with pauses; where it listens.
fn slow_source(
    bytes: Vec<u8>,
    piece: usize,
    pause: Duration,
) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let source = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; REQUEST_BYTES];
        stream.read_exact(&mut asked).unwrap();
        let (request, crc) = RangeRequest::decode(&asked).unwrap();
        let response = Response {
            status: BulkStatus::Ok,
            request_crc: crc,
            from: request.from,
            len: request.len,
            durable_len: request.len,
        };
        stream.write_all(&response.encode()).unwrap();
        for piece in bytes.chunks(piece) {
            stream.write_all(piece).unwrap();
            std::thread::sleep(pause);
        }
        // Held open: that the stream ends is not what wakes the reader.
        let _ = stream.read(&mut [0]);
    });
    (addr, source)
}

#[test]
fn a_stream_that_trickles_is_not_silent() {
    const PIECES: usize = 30;
    const PIECE: usize = 512;
    let all = bytes(PIECES * PIECE, 10);
    // The pieces take half as long again as a stream may be silent, and all of them are fewer bytes than a
    // reader is woken for.
    let (idle, pause) = (Duration::from_secs(2), Duration::from_millis(100));
    assert!(pause * PIECES as u32 > idle && all.len() < narad_wire::limits::BULK_WAKE_BYTES);
    let (addr, source) = slow_source(all.clone(), PIECE, pause);
    run(async {
        let mut stream = BulkStream::connect_with(&addr, idle).await.unwrap();
        stream.request(range(0, 0, all.len() as u64)).await.unwrap();
        let mut buf = vec![0; all.len()];
        let got = stream.read_into(&mut buf).await;
        assert_eq!(got.unwrap(), all.len());
        assert!(buf == all);
    });
    source.join().unwrap();
}

#[test]
fn a_reader_is_not_woken_for_every_piece_that_arrives() {
    const PIECES: usize = 64;
    const PIECE: usize = 512;
    let all = bytes(PIECES * PIECE, 11);
    let (addr, source) = slow_source(all.clone(), PIECE, Duration::from_millis(2));
    run(async {
        let mut stream = BulkStream::connect(&addr).await.unwrap();
        stream.request(range(0, 0, all.len() as u64)).await.unwrap();
        let mut buf = vec![0; all.len()];
        let mut woken = 0;
        let mut read = std::pin::pin!(stream.read_into(&mut buf));
        let got = std::future::poll_fn(|cx| {
            woken += 1;
            read.as_mut().poll(cx)
        })
        .await;
        assert_eq!(got.unwrap(), all.len());
        // For the request's answer, and for the bytes; all of them may also have been there at once.
        assert!(woken * 8 <= PIECES, "{woken} times for {PIECES} pieces");
    });
    source.join().unwrap();
}

#[test]
fn too_many_streams_are_turned_away_with_a_reason() {
    let source = Source::start("busy", |o| o.max_streams = 2);
    source.offer(0, &bytes(4096, 9));
    run(async {
        let mut buf = vec![0; 4096];
        let mut held = Vec::new();
        for _ in 0..2 {
            let mut s = BulkStream::connect(&source.addr).await.unwrap();
            s.request(range(0, 0, 4096)).await.unwrap();
            assert_eq!(s.read_into(&mut buf).await.unwrap(), 4096);
            held.push(s);
        }
        let mut third = BulkStream::connect(&source.addr).await.unwrap();
        let answer = refused(&mut third, range(0, 0, 4096)).await;
        assert_eq!(answer.0, BulkStatus::Busy);
        held.clear();
        while source.server.stats().streams > 0 {
            glommio::timer::sleep(Duration::from_millis(5)).await;
        }
        let mut fourth = BulkStream::connect(&source.addr).await.unwrap();
        fourth.request(range(0, 0, 4096)).await.unwrap();
        assert_eq!(fourth.read_into(&mut buf).await.unwrap(), 4096);
    });
    source.end();
}

#[test]
fn garbage_gets_a_typed_answer_and_an_end() {
    let source = Source::start("garbage", |_| {});
    let mut raw = TcpStream::connect(&source.addr).unwrap();
    raw.write_all(&[0xaa; narad_wire::bulk::header::REQUEST_BYTES])
        .unwrap();
    let mut answer = Vec::new();
    raw.read_to_end(&mut answer).unwrap();
    let header = answer.as_slice().try_into().unwrap();
    let response = narad_wire::bulk::header::Response::decode(header).unwrap();
    assert_eq!(response.status, BulkStatus::BadRequest);
    // Half a header and then nothing: the thread ends with the connection.
    let mut half = TcpStream::connect(&source.addr).unwrap();
    half.write_all(&[1; 10]).unwrap();
    drop(half);
    while source.server.stats().streams > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    source.end();
}

#[test]
fn stopping_ends_streams_and_threads() {
    let source = Source::start("stop", |_| {});
    let len = 32u64 << 20;
    source.offer(0, &bytes(usize::try_from(len).unwrap(), 11));
    let addr = source.addr.clone();
    run(async {
        let mut s = BulkStream::connect(&addr).await.unwrap();
        s.request(range(0, 0, len)).await.unwrap();
        let mut buf = vec![0; 64 << 10];
        s.read_into(&mut buf).await.unwrap();
        // Returns although a thread is blocked on a socket that nobody reads.
        source.end();
        let end = loop {
            if let Err(error) = s.read_into(&mut buf).await {
                break error;
            }
        };
        assert!(matches!(end, BulkError::Interrupted { .. }), "{end:?}");
        assert!(BulkStream::connect(&addr).await.is_err());
    });
}

#[test]
fn a_rate_limit_slows_and_lifting_it_speeds_up_again() {
    let source = Source::start("rate", |_| {});
    let len = 8u64 << 20;
    source.offer(0, &bytes(usize::try_from(len).unwrap(), 12));
    let time = |source: &Source| {
        let start = std::time::Instant::now();
        run(copy(&source.addr, 0, len, len));
        start.elapsed()
    };
    let free = time(&source);
    // Eight chunks of 1 MiB at eight times the free run's time for all of them: the first goes at
    // once, seven wait their turn.
    let rate = (len as f64 / (8.0 * free.as_secs_f64().max(0.005))) as u64;
    source.server.set_rate_bytes_per_s(rate);
    let limited = time(&source);
    assert!(limited > free * 4, "{limited:?} against {free:?}");
    let start = std::time::Instant::now();
    let addr = source.addr.clone();
    run(async move {
        let mut stream = BulkStream::connect(&addr).await.unwrap();
        let drained = RangeRequest {
            drain: true,
            ..range(0, 0, len)
        };
        stream.request(drained).await.unwrap();
        let mut buf = vec![0; usize::try_from(len).unwrap()];
        assert_eq!(stream.read_into(&mut buf).await.unwrap(), buf.len());
    });
    let drain = start.elapsed();
    assert!(drain < limited / 2, "{drain:?} against {limited:?}");
    source.server.set_rate_bytes_per_s(0);
    let again = time(&source);
    assert!(again < limited / 2, "{again:?} against {limited:?}");
    source.end();
}
