//! Whose panic it is: the RPC library answers some impossible messages with one, and a peer's bytes may
//! end the peer's connection and nothing else; a panic of this program's own code is another matter.
//!
//! What this file keeps true: a panic counts as the library's only while the library itself runs: what
//! it calls of ours (the handlers of calls, and the drop of what was given to it) is set apart, so that
//! a broken invariant there is never taken for a peer's bytes.

use capnp::any_pointer;
use capnp::capability::{
    DispatchCallResult, FromClientHook, FromServer, Params, Promise, Results, Server,
};
use capnp::private::capability::ClientHook;
use std::any::Any;
use std::cell::Cell;
use std::future::Future;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

thread_local! {
    static LIBRARY_RUNS: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread at this moment is the RPC library's, and caught: it ends one
/// connection. For panic hooks.
#[must_use]
pub fn panic_is_caught() -> bool {
    // A thread whose locals are gone runs no connection.
    LIBRARY_RUNS.try_with(Cell::get).unwrap_or(false)
}

/// Who runs from here until it is dropped, also by a panic.
struct Running {
    before: bool,
}

impl Running {
    fn library(runs: bool) -> Self {
        let before = LIBRARY_RUNS.try_with(|now| now.replace(runs));
        Self {
            before: before.unwrap_or(false),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = LIBRARY_RUNS.try_with(|now| now.set(self.before));
    }
}

/// What the library runs: it ends with an error where it panics.
pub(super) struct Caught<F>(Option<Pin<Box<F>>>);

impl<F> Caught<F> {
    pub(super) fn new(system: F) -> Self {
        Self(Some(Box::pin(system)))
    }
}

fn caught<T>(work: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    let _running = Running::library(true);
    catch_unwind(AssertUnwindSafe(work))
}

impl<F: Future> Future for Caught<F> {
    type Output = Result<F::Output, Box<dyn Any + Send>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let system = self.0.as_mut().expect("polled no further than its end");
        match caught(|| system.as_mut().poll(cx)) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    }
}

impl<F> Drop for Caught<F> {
    fn drop(&mut self) {
        let system = self.0.take();
        // What a panic has left behind may not come apart without another one.
        let _ = caught(|| drop(system));
    }
}

/// A handler's work, which the library polls and drops.
struct Own(Option<Promise<(), capnp::Error>>);

impl Future for Own {
    type Output = Result<(), capnp::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let _running = Running::library(false);
        let work = self.0.as_mut().expect("there until it is dropped");
        Pin::new(work).poll(cx)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _running = Running::library(false);
        self.0 = None;
    }
}

/// A server, which the library calls and drops.
pub struct OwnDispatch<D>(Option<D>);

impl<D> OwnDispatch<D> {
    fn get(&self) -> &D {
        self.0
            .as_ref()
            .expect("there until it is called or dropped")
    }
}

impl<D: Server> Server for OwnDispatch<D> {
    fn dispatch_call(
        mut self,
        interface_id: u64,
        method_id: u16,
        params: Params<any_pointer::Owned>,
        results: Results<any_pointer::Owned>,
    ) -> DispatchCallResult {
        let _running = Running::library(false);
        let dispatch = self.0.take().expect("called once");
        let called = dispatch.dispatch_call(interface_id, method_id, params, results);
        DispatchCallResult {
            promise: Promise::from_future(Own(Some(called.promise))),
            is_streaming: called.is_streaming,
        }
    }

    fn as_ptr(&self) -> usize {
        self.get().as_ptr()
    }
}

impl<D: Clone> Clone for OwnDispatch<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Deref> Deref for OwnDispatch<D> {
    type Target = D::Target;

    fn deref(&self) -> &Self::Target {
        self.get()
    }
}

impl<D> Drop for OwnDispatch<D> {
    fn drop(&mut self) {
        let _running = Running::library(false);
        self.0 = None;
    }
}

/// Makes clients whose server is set apart.
struct OwnClient<C>(C);

impl<C: FromClientHook> FromClientHook for OwnClient<C> {
    fn new(hook: Box<dyn ClientHook>) -> Self {
        Self(C::new(hook))
    }

    fn into_client_hook(self) -> Box<dyn ClientHook> {
        self.0.into_client_hook()
    }

    fn as_client_hook(&self) -> &dyn ClientHook {
        self.0.as_client_hook()
    }
}

impl<S, C: FromServer<S>> FromServer<S> for OwnClient<C> {
    type Dispatch = OwnDispatch<C::Dispatch>;

    fn from_server(server: Rc<S>) -> Self::Dispatch {
        OwnDispatch(Some(C::from_server(server)))
    }
}

/// A capability that is served by `server`, whose panics are this program's own. Whatever a node serves
/// is made with this.
pub fn new_client<C: FromServer<S>, S>(server: S) -> C {
    capnp_rpc::new_client::<OwnClient<C>, S>(server).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::future::poll_fn;

    struct Tells(Rc<Cell<Option<bool>>>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.set(Some(panic_is_caught()));
        }
    }

    #[test]
    fn the_librarys_panics_are_told_from_our_own() {
        let dropped = Rc::new(Cell::new(None));
        let tells = Tells(dropped.clone());
        let work = Promise::from_future(async move {
            assert!(!panic_is_caught(), "a handler is ours");
            let _tells = tells;
            std::future::pending::<()>().await;
            Ok(())
        });
        let mut own = Own(Some(work));
        let mut system = Caught::new(poll_fn(move |cx| {
            assert!(panic_is_caught());
            let polled = own.poll_unpin(cx).map(|_| ());
            assert!(panic_is_caught(), "the library goes on");
            polled
        }));
        assert!((&mut system).now_or_never().is_none());
        assert!(!panic_is_caught());
        drop(system);
        assert_eq!(dropped.get(), Some(false), "what it drops of ours is ours");
    }

    #[test]
    fn a_panic_ends_what_panicked_and_leaves_nothing_set() {
        let dropped = Rc::new(Cell::new(None));
        let tells = Tells(dropped.clone());
        let system = async move {
            let _tells = tells;
            panic!("an impossible message");
        };
        let ended: Result<(), _> = Caught::new(system).now_or_never().expect("it ends");
        assert!(ended.is_err() && !panic_is_caught());
        assert_eq!(dropped.get(), Some(true));
    }
}
