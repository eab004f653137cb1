//! The channels and the mutex that openraft's runtime trait asks for, over `tokio::sync`, which needs no runtime of
//! its own: wakers are all it uses.

use openraft::OptionalSend;
use openraft::OptionalSync;
use openraft_rt::{mpsc, mutex, oneshot, watch};
use std::future::Future;
use tokio::sync as raw;

/// Bounded queue of many senders and one receiver.
pub struct Mpsc;

/// See [`Mpsc`].
pub struct MpscSender<T>(raw::mpsc::Sender<T>);
/// See [`Mpsc`].
pub struct MpscReceiver<T>(raw::mpsc::Receiver<T>);
/// A sender that does not keep the queue open.
pub struct MpscWeakSender<T>(raw::mpsc::WeakSender<T>);

impl<T> Clone for MpscSender<T> {
    fn clone(&self) -> Self {
        MpscSender(self.0.clone())
    }
}

impl<T> Clone for MpscWeakSender<T> {
    fn clone(&self) -> Self {
        MpscWeakSender(self.0.clone())
    }
}

impl mpsc::Mpsc for Mpsc {
    type Sender<T: OptionalSend> = MpscSender<T>;
    type Receiver<T: OptionalSend> = MpscReceiver<T>;
    type WeakSender<T: OptionalSend> = MpscWeakSender<T>;

    fn channel<T: OptionalSend>(buffer: usize) -> (MpscSender<T>, MpscReceiver<T>) {
        let (tx, rx) = raw::mpsc::channel(buffer);
        (MpscSender(tx), MpscReceiver(rx))
    }
}

impl<T: OptionalSend> mpsc::MpscSender<Mpsc, T> for MpscSender<T> {
    fn send(&self, msg: T) -> impl Future<Output = Result<(), mpsc::SendError<T>>> {
        let sending = self.0.send(msg);
        async move { sending.await.map_err(|error| mpsc::SendError(error.0)) }
    }

    fn downgrade(&self) -> MpscWeakSender<T> {
        MpscWeakSender(self.0.downgrade())
    }
}

impl<T: OptionalSend> mpsc::MpscReceiver<T> for MpscReceiver<T> {
    fn recv(&mut self) -> impl Future<Output = Option<T>> {
        self.0.recv()
    }

    fn try_recv(&mut self) -> Result<T, mpsc::TryRecvError> {
        self.0.try_recv().map_err(|error| match error {
            raw::mpsc::error::TryRecvError::Empty => mpsc::TryRecvError::Empty,
            raw::mpsc::error::TryRecvError::Disconnected => mpsc::TryRecvError::Disconnected,
        })
    }
}

impl<T: OptionalSend> mpsc::MpscWeakSender<Mpsc, T> for MpscWeakSender<T> {
    fn upgrade(&self) -> Option<MpscSender<T>> {
        self.0.upgrade().map(MpscSender)
    }
}

/// One value, once.
pub struct Oneshot;

/// See [`Oneshot`].
pub struct OneshotSender<T>(raw::oneshot::Sender<T>);

impl oneshot::Oneshot for Oneshot {
    type Sender<T: OptionalSend> = OneshotSender<T>;
    type Receiver<T: OptionalSend> = raw::oneshot::Receiver<T>;
    type ReceiverError = raw::oneshot::error::RecvError;

    fn channel<T: OptionalSend>() -> (OneshotSender<T>, raw::oneshot::Receiver<T>) {
        let (tx, rx) = raw::oneshot::channel();
        (OneshotSender(tx), rx)
    }
}

impl<T: OptionalSend> oneshot::OneshotSender<T> for OneshotSender<T> {
    fn send(self, value: T) -> Result<(), T> {
        self.0.send(value)
    }
}

/// The latest value, with change notifications.
pub struct Watch;

/// See [`Watch`].
pub struct WatchSender<T>(raw::watch::Sender<T>);
/// See [`Watch`].
pub struct WatchReceiver<T>(raw::watch::Receiver<T>);

impl<T> Clone for WatchSender<T> {
    fn clone(&self) -> Self {
        WatchSender(self.0.clone())
    }
}

impl<T> Clone for WatchReceiver<T> {
    fn clone(&self) -> Self {
        WatchReceiver(self.0.clone())
    }
}

impl watch::Watch for Watch {
    type Sender<T: OptionalSend + OptionalSync> = WatchSender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = WatchReceiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = raw::watch::Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (WatchSender<T>, WatchReceiver<T>) {
        let (tx, rx) = raw::watch::channel(init);
        (WatchSender(tx), WatchReceiver(rx))
    }
}

impl<T: OptionalSend + OptionalSync> watch::WatchSender<Watch, T> for WatchSender<T> {
    fn send(&self, value: T) -> Result<(), watch::SendError<T>> {
        self.0
            .send(value)
            .map_err(|error| watch::SendError(error.0))
    }

    fn send_if_modified<F: FnOnce(&mut T) -> bool>(&self, modify: F) -> bool {
        self.0.send_if_modified(modify)
    }

    fn borrow_watched(&self) -> raw::watch::Ref<'_, T> {
        self.0.borrow()
    }

    fn subscribe(&self) -> WatchReceiver<T> {
        WatchReceiver(self.0.subscribe())
    }
}

impl<T: OptionalSend + OptionalSync> watch::WatchReceiver<Watch, T> for WatchReceiver<T> {
    async fn changed(&mut self) -> Result<(), watch::RecvError> {
        self.0.changed().await.map_err(|_| watch::RecvError(()))
    }

    fn borrow_watched(&self) -> raw::watch::Ref<'_, T> {
        self.0.borrow()
    }

    fn borrow_and_update(&mut self) -> raw::watch::Ref<'_, T> {
        self.0.borrow_and_update()
    }
}

/// A mutex held across awaits, on one thread.
pub struct LocalMutex<T>(raw::Mutex<T>);

impl<T: OptionalSend + 'static> mutex::Mutex<T> for LocalMutex<T> {
    type Guard<'a> = raw::MutexGuard<'a, T>;

    fn new(value: T) -> Self {
        LocalMutex(raw::Mutex::new(value))
    }

    fn lock(&self) -> impl Future<Output = raw::MutexGuard<'_, T>> {
        self.0.lock()
    }
}
