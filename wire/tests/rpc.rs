//! Connections and the pool over loopback.
//!
//! What this file keeps true: large messages do not end a connection, one connection an address
//! serves everybody, ends are noticed at once, and outcomes are told apart.

mod common;

use common::{Cluster, Mood, run};
use narad_core::ids::{NodeId, NodeIncarnation};
use narad_wire::convert::check;
use narad_wire::error::{ErrorCode, WireError};
use narad_wire::limits::{BATCH_MAX_BYTES, CALL_LIMIT_WORDS};
use narad_wire::pool::{NodePool, PeerPool, PoolOptions};
use narad_wire::rpc::{self, Door};
use narad_wire::runtime::Glommio;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(20);

fn pool() -> PeerPool {
    PeerPool::new(NodeId("me".into()), NodeIncarnation(1))
}

#[test]
fn a_plain_connection_calls_and_serves() {
    run(async {
        let cluster = Cluster::start(1, 1);
        let node = rpc::connect(&cluster.addr(0), DEADLINE).await.unwrap();
        let id = rpc::call(DEADLINE, node.info_request().send(), |r| {
            Ok(r.get_info()?.get_id()?.to_string()?)
        });
        assert_eq!(id.await.unwrap(), "n0");
        // A method that this node does not have is a typed answer.
        let error = rpc::call(DEADLINE, node.moves_request().send(), |r| {
            check(r.has_error(), r.get_error())
        });
        assert_eq!(
            error.await.unwrap_err().code(),
            Some(ErrorCode::Unsupported)
        );
    });
}

#[test]
fn nothing_listens_is_a_connect_error_with_nothing_done() {
    run(async {
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = unused.local_addr().unwrap().to_string();
        drop(unused);
        let Err(error) = rpc::connect(&addr, DEADLINE).await else {
            panic!("connected to nobody");
        };
        assert!(matches!(error, WireError::Connect { .. }), "{error}");
        assert!(!error.outcome_unknown());
        for bad in ["", "no-port", "host:notaport", "256.1.1.1:1"] {
            assert!(rpc::connect(bad, DEADLINE).await.is_err(), "{bad:?}");
        }
    });
}

#[test]
fn megabytes_through_one_connection_do_not_end_it() {
    run(async {
        let cluster = Cluster::start(1, 1);
        let pool = pool();
        let id = NodeId("n0".into());
        let peer = pool.peer(&id, &cluster.addr(0)).await.unwrap();
        let body = vec![0x5a; 3 << 20];
        // Together far beyond the 64 MiB at which the library's defaults cut a connection.
        for _ in 0..30 {
            let mut request = peer.raft_request();
            request.get().set_body(&body);
            let echoed = rpc::call(DEADLINE, request.send(), |r| {
                check(r.has_error(), r.get_error())?;
                Ok(r.get_body()?.len())
            });
            assert_eq!(echoed.await.unwrap(), body.len());
        }
        // One message of several of the largest batches as well: what is too large is refused in words.
        let echo = |peer: &narad_schema::peer_capnp::peer::Client, bytes: usize| {
            let mut request = peer.raft_request();
            request.get().set_body(&vec![1; bytes]);
            rpc::call(DEADLINE, request.send(), |r| Ok(r.get_body()?.len()))
        };
        let several = 6 * BATCH_MAX_BYTES;
        assert_eq!(echo(&peer, several).await.unwrap(), several);
        assert_eq!(cluster.connections.get(), 1);
        // One that is longer than that is not taken in to be called so; others are still served.
        echo(&peer, CALL_LIMIT_WORDS * 8).await.unwrap_err();
        let node = rpc::connect(&cluster.addr(0), DEADLINE).await.unwrap();
        let answer = rpc::call(DEADLINE, node.info_request().send(), |_| Ok(()));
        answer.await.unwrap();
    });
}

#[test]
fn callers_at_the_same_time_share_one_attempt_and_one_connection() {
    run(async {
        let cluster = Cluster::start(1, 1);
        let pool = pool();
        let id = NodeId("n0".into());
        let addr = cluster.addr(0);
        let calls = (0..50).map(|_| async {
            let peer = pool.peer(&id, &addr).await.unwrap();
            rpc::call(DEADLINE, peer.local_moves_request().send(), |r| {
                Ok(r.get_moves()?.len())
            })
            .await
            .unwrap()
        });
        let results = futures::future::join_all(calls).await;
        assert_eq!(results, vec![1; 50]);
        assert_eq!(cluster.connections.get(), 1);
    });
}

#[test]
fn a_deadline_and_a_lost_connection_leave_the_outcome_open() {
    run(async {
        let cluster = Cluster::start(1, 1);
        let pool = pool();
        let id = NodeId("n0".into());
        let peer = pool.peer(&id, &cluster.addr(0)).await.unwrap();
        let never = |peer: &narad_schema::peer_capnp::peer::Client| {
            let mut request = peer.raft_request();
            request.get().set_kind(9);
            request.send()
        };
        let short = Duration::from_millis(20);
        let error = rpc::call(short, never(&peer), |_| Ok(()))
            .await
            .unwrap_err();
        assert!(matches!(error, WireError::Timeout { after_ms: 20 }));
        assert!(error.outcome_unknown());
        let waiting = rpc::call(DEADLINE, never(&peer), |_| Ok(()));
        let killing = async {
            glommio::timer::sleep(Duration::from_millis(20)).await;
            cluster.kill(0).await;
        };
        let (error, ()) = futures::join!(waiting, killing);
        let error = error.unwrap_err();
        assert!(matches!(error, WireError::Disconnected { .. }), "{error:?}");
        assert!(error.outcome_unknown());
    });
}

#[test]
fn a_node_that_comes_back_is_found_again_without_being_told() {
    run(async {
        let cluster = Cluster::start(1, 1);
        let pool = pool();
        let id = NodeId("n0".into());
        let addr = cluster.addr(0);
        pool.peer(&id, &addr).await.unwrap();
        cluster.kill(0).await;
        // The end is noticed by itself: nobody has made a call.
        let mut refused = 0;
        let mut waits = Vec::new();
        glommio::timer::sleep(Duration::from_millis(50)).await;
        for _ in 0..20 {
            match pool.peer(&id, &addr).await {
                Ok(_) => panic!("connected to a dead node"),
                Err(WireError::Connect { retry_after_ms, .. }) => {
                    refused += 1;
                    waits.push(retry_after_ms);
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(refused, 20);
        assert!(waits.iter().all(|ms| *ms > 0 && *ms <= 1_001), "{waits:?}");
        cluster.revive(0);
        let mut found = false;
        for _ in 0..400 {
            if pool.peer(&id, &addr).await.is_ok() {
                found = true;
                break;
            }
            glommio::timer::sleep(Duration::from_millis(10)).await;
        }
        assert!(found, "the node was never found again");
    });
}

#[test]
fn failed_attempts_are_bounded_by_the_backoff() {
    run(async {
        // Accepts and says nothing: every attempt costs a connection that can be counted.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        let options = PoolOptions {
            connect_deadline: Duration::from_millis(20),
            backoff_min: Duration::from_millis(200),
            backoff_max: Duration::from_millis(400),
            ..PoolOptions::default()
        };
        let pool = NodePool::new(Glommio, options);
        let began = std::time::Instant::now();
        let mut asked = 0u32;
        while began.elapsed() < Duration::from_millis(900) {
            assert!(pool.node(&addr).await.is_err());
            asked += 1;
            glommio::timer::sleep(Duration::from_millis(1)).await;
        }
        let mut attempts = 0;
        while listener.accept().is_ok() {
            attempts += 1;
        }
        // However long the loop really took, at most one attempt in each shortest pause.
        let most = began.elapsed().as_millis() / 100 + 1;
        assert!(
            attempts >= 1 && attempts as u128 <= most,
            "{attempts} of {asked}"
        );
        assert!(asked > attempts);
    });
}

#[test]
fn another_node_at_the_address_and_a_stranger_are_told() {
    run(async {
        let cluster = Cluster::start(1, 1);
        let addr = cluster.addr(0);
        let error = match pool().peer(&NodeId("n7".into()), &addr).await {
            Ok(_) => panic!("took n0 for n7"),
            Err(error) => error,
        };
        assert!(
            error.to_string().contains("node n0 answers there"),
            "{error}"
        );
        let stranger = PeerPool::new(NodeId("stranger".into()), NodeIncarnation(1));
        let error = match stranger.peer(&NodeId("n0".into()), &addr).await {
            Ok(_) => panic!("let a stranger in"),
            Err(error) => error,
        };
        assert_eq!(error.code(), Some(ErrorCode::NotMember));
        // The client interface does not care who answers.
        assert!(pool().node(&addr).await.is_ok());
    });
}

#[test]
fn a_door_is_heard_and_a_node_without_doors_is_spoken_to_all_the_same() {
    use futures::io::{AsyncReadExt, AsyncWriteExt};
    run(async {
        let listener = glommio::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap().to_string();
        for (said, heard) in [
            (&b"NARADCTLrest"[..], Some(Door::Control)),
            (b"\0\0\0\0rest", Some(Door::Shard)),
            (b"NARADxyzrest", None),
            (b"NAR", None),
            (b"", None),
        ] {
            let mut outward = glommio::net::TcpStream::connect(&addr).await.unwrap();
            outward.write_all(said).await.unwrap();
            outward.shutdown(std::net::Shutdown::Write).await.unwrap();
            let mut inward = listener.accept().await.unwrap();
            let door = Door::hear(&mut inward).await;
            assert_eq!(door.ok(), heard, "{said:?}");
            if heard.is_some() {
                let mut rest = Vec::new();
                inward.read_to_end(&mut rest).await.unwrap();
                assert!(rest.ends_with(b"rest") && rest.len() <= 8, "{rest:?}");
            }
        }
        // The nodes of this test take the word for a broken message.
        let cluster = Cluster::start(1, 1);
        let pool = PeerPool::of_control(NodeId("me".into()), NodeIncarnation(1));
        let peer = pool.peer(&NodeId("n0".into()), &cluster.addr(0)).await;
        if let Err(error) = peer {
            panic!("{error:?}");
        }
    });
}

#[test]
fn a_failed_report_brings_a_new_connection_and_dropping_ends_the_old() {
    run(async {
        let cluster = Cluster::start(1, 1);
        let pool = NodePool::new(Glommio, PoolOptions::default());
        let addr = cluster.addr(0);
        let old = pool.node(&addr).await.unwrap();
        // At once: the connection is too young to be the one that failed.
        pool.failed(&addr);
        assert_eq!(pool.live(), 1);
        glommio::timer::sleep(Duration::from_millis(150)).await;
        pool.failed(&addr);
        assert_eq!(pool.live(), 0);
        pool.node(&addr).await.unwrap();
        assert_eq!(cluster.connections.get(), 2);
        let error = rpc::call(DEADLINE, old.info_request().send(), |_| Ok(()));
        assert!(matches!(error.await, Err(WireError::Disconnected { .. })));
        pool.retain(|_| false);
        assert_eq!(pool.live(), 0);
    });
}

#[test]
fn a_stalled_node_is_a_failed_attempt_and_no_hang() {
    run(async {
        let cluster = Cluster::start(1, 1);
        cluster.mood(0, Mood::Stall);
        let options = PoolOptions {
            connect_deadline: Duration::from_millis(50),
            ..PoolOptions::default()
        };
        let pool = NodePool::new(Glommio, options);
        let error = match pool.node(&cluster.addr(0)).await {
            Ok(_) => panic!("a stalled node counts as reached"),
            Err(error) => error,
        };
        assert!(matches!(error, WireError::Connect { .. }), "{error:?}");
        assert!(!error.outcome_unknown());
    });
}

/// What a client sends to ask who is there: two messages in one go.
fn recorded_session() -> Vec<u8> {
    use std::io::Read;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let record = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let mut all = Vec::new();
        let mut buf = [0; 4096];
        while let Ok(n) = stream.read(&mut buf) {
            if n == 0 {
                break;
            }
            all.extend_from_slice(&buf[..n]);
        }
        all
    });
    run(async move {
        let node = rpc::connect(&addr, DEADLINE).await.unwrap();
        let short = Duration::from_millis(600);
        let _ = rpc::call(short, node.info_request().send(), |_| Ok(())).await;
    });
    record.join().unwrap()
}

#[test]
fn damaged_messages_end_their_connection_and_nothing_else() {
    use futures::io::{AsyncReadExt, AsyncWriteExt};
    let session = recorded_session();
    assert!(session.len() > 64, "{} bytes recorded", session.len());
    run(async {
        let cluster = Cluster::start(1, 1);
        let addr = cluster.addr(0);
        let mut answered = 0;
        for bit in (0..session.len() * 8).step_by(5) {
            let mut bad = session.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let mut stream = glommio::net::TcpStream::connect(&addr).await.unwrap();
            stream.write_all(&bad).await.unwrap();
            stream.shutdown(std::net::Shutdown::Write).await.unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            answered += usize::from(!answer.is_empty());
        }
        assert!(
            answered > 0,
            "some of the damage is harmless and is answered"
        );
        for length in [1, 7, 8, 9, 100] {
            let mut stream = glommio::net::TcpStream::connect(&addr).await.unwrap();
            stream.write_all(&session[..length]).await.unwrap();
        }
        let mut stream = glommio::net::TcpStream::connect(&addr).await.unwrap();
        stream.write_all(&[0xff; 4096]).await.unwrap();
        let pool = pool();
        let node = pool.node(&addr).await.unwrap();
        let id = rpc::call(DEADLINE, node.info_request().send(), |r| {
            Ok(r.get_info()?.get_id()?.to_string()?)
        });
        assert_eq!(id.await.unwrap(), "n0");
    });
}
