//! The client on an executor that is not glommio: a loop over boxed futures whose connections are
//! a pair of plain threads. The node runs on glommio in another thread.
//!
//! What this file keeps true: nothing in RPC, pool and client needs glommio.

mod common;

use common::{Cluster, TOPIC, value};
use futures::channel::{mpsc, oneshot};
use futures::future::{FutureExt, LocalBoxFuture};
use futures::io::{AsyncRead, AsyncWrite};
use futures::stream::{FuturesUnordered, StreamExt};
use narad_wire::client::{
    Client, ClientOptions, ConsumerOptions, Produced, ProducerOptions, Record,
};
use narad_wire::runtime::Runtime;
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Wakes a parked thread.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[derive(Clone, Default)]
struct Threads {
    spawned: Rc<RefCell<Vec<LocalBoxFuture<'static, ()>>>>,
}

impl Threads {
    fn block_on<T>(&self, main: impl Future<Output = T>) -> T {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        let mut main = std::pin::pin!(main);
        let mut tasks = FuturesUnordered::new();
        loop {
            if let Poll::Ready(value) = main.as_mut().poll(&mut cx) {
                return value;
            }
            tasks.extend(self.spawned.borrow_mut().drain(..));
            while let Poll::Ready(Some(())) = tasks.poll_next_unpin(&mut cx) {}
            if self.spawned.borrow().is_empty() {
                std::thread::park_timeout(Duration::from_millis(1));
            }
        }
    }
}

/// A socket read by one thread and written by another.
struct Piped {
    socket: TcpStream,
    incoming: mpsc::UnboundedReceiver<io::Result<Vec<u8>>>,
    left: Vec<u8>,
    outgoing: std::sync::mpsc::Sender<Vec<u8>>,
}

impl Piped {
    fn new(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let (from, incoming) = mpsc::unbounded();
        let (outgoing, to) = std::sync::mpsc::channel::<Vec<u8>>();
        let mut read = socket.try_clone()?;
        std::thread::spawn(move || {
            let mut buf = [0; 65_536];
            loop {
                let got = read.read(&mut buf).map(|n| buf[..n].to_vec());
                let end = got.as_ref().map_or(true, Vec::is_empty);
                if from.unbounded_send(got).is_err() || end {
                    return;
                }
            }
        });
        let mut write = socket.try_clone()?;
        std::thread::spawn(move || {
            while let Ok(bytes) = to.recv() {
                if write.write_all(&bytes).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            socket,
            incoming,
            left: Vec::new(),
            outgoing,
        })
    }
}

impl Drop for Piped {
    fn drop(&mut self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

impl AsyncRead for Piped {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.left.is_empty() {
            match futures::ready!(self.incoming.poll_next_unpin(cx)) {
                Some(Ok(bytes)) => self.left = bytes,
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Ok(0)),
            }
        }
        let n = self.left.len().min(buf.len());
        buf[..n].copy_from_slice(&self.left[..n]);
        self.left.drain(..n);
        Poll::Ready(Ok(n))
    }
}

impl AsyncWrite for Piped {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = self.outgoing.send(buf.to_vec());
        Poll::Ready(match sent {
            Ok(()) => Ok(buf.len()),
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(Shutdown::Write))
    }
}

fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = T> + 'static {
    let (done, result) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = done.send(work());
    });
    result.map(|result| result.expect("the thread answers"))
}

impl Runtime for Threads {
    type Stream = Piped;

    fn connect(
        &self,
        addr: &str,
        _deadline: Duration,
    ) -> LocalBoxFuture<'static, io::Result<Piped>> {
        let addr = addr.to_owned();
        in_thread(move || TcpStream::connect(addr).and_then(Piped::new)).boxed_local()
    }

    fn sleep(&self, time: Duration) -> LocalBoxFuture<'static, ()> {
        in_thread(move || std::thread::sleep(time)).boxed_local()
    }

    fn spawn(&self, task: LocalBoxFuture<'static, ()>) {
        self.spawned.borrow_mut().push(task);
    }
}

#[test]
fn a_client_without_glommio_produces_and_consumes() {
    let (tell, addr) = std::sync::mpsc::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let node = std::thread::spawn(move || {
        common::run(async move {
            let cluster = Cluster::start(1, 2);
            tell.send(cluster.addr(0)).unwrap();
            let _ = stopped.await;
            let stored = cluster.stored();
            (stored.len(), cluster.unacked())
        })
    });
    let threads = Threads::default();
    let addr = addr.recv().unwrap();
    threads.block_on(async {
        let mut options = ClientOptions::new(vec![addr]);
        options.deadline = Duration::from_secs(20);
        let client = Client::with(threads.clone(), options);
        assert_eq!(client.info().await.unwrap().id, "n0");
        let producer = client.producer(TOPIC, ProducerOptions::default());
        let mut receipts = Vec::new();
        for n in 0..100 {
            let record = Record::new(value(n)).key(value(n));
            receipts.push(producer.send(record, None).await.unwrap());
        }
        producer.flush().await;
        for receipt in receipts {
            assert!(matches!(receipt.await, Ok(Produced::Committed { .. })));
        }
        let mut consumer = client.consumer(TOPIC, ConsumerOptions::default());
        let mut got = 0;
        while got < 100 {
            let batch = consumer.next().await.unwrap();
            got += batch.len();
            consumer.ack(&batch).await;
        }
    });
    stop.send(()).unwrap();
    assert_eq!(node.join().unwrap(), (100, 0));
}
