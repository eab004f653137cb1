//! The RPC library's network of two parties, with reading of our own, writing of our own, and messages
//! that begin with the room that they need.
//!
//! What this file keeps true: nothing of the protocol is decided here; what messages mean, their order, and the
//! end of a connection stay with the library.

use super::incoming::{Held, Incoming};
use super::outgoing::Outgoing;
use super::room;
use capnp::capability::Promise;
use capnp::message::{Reader, ReaderOptions};
use capnp::{Error, any_pointer};
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{
    Connection, FlowController, IncomingMessage, OutgoingMessage, VatNetwork, twoparty,
};
use futures::io::{AsyncRead, AsyncWrite, Empty};
use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;

/// The reading half, while nobody reads. Who reads has taken it along: calls that are never answered keep the
/// library's side of an ended connection alive, and the socket must not live as long as they do.
type Resting<R> = Rc<RefCell<Option<Incoming<R>>>>;

/// A connection over two halves of a stream.
pub(super) struct Network<R> {
    library: twoparty::VatNetwork<Empty>,
    incoming: Resting<R>,
}

impl<R: AsyncRead + Unpin + 'static> Network<R> {
    pub(super) fn new<W>(read: R, write: W, side: Side, options: ReaderOptions) -> Self
    where
        W: AsyncWrite + Unpin + 'static,
    {
        let write = Outgoing::new(write);
        Self {
            library: twoparty::VatNetwork::new(futures::io::empty(), write, side, options),
            incoming: Rc::new(RefCell::new(Some(Incoming::new(read, options)))),
        }
    }
}

impl<R: AsyncRead + Unpin + 'static> VatNetwork<Side> for Network<R> {
    fn connect(&mut self, host_id: Side) -> Option<Box<dyn Connection<Side>>> {
        let library = self.library.connect(host_id)?;
        let incoming = self.incoming.clone();
        Some(Box::new(Line { library, incoming }))
    }

    fn accept(&mut self) -> Promise<Box<dyn Connection<Side>>, Error> {
        let accepted = self.library.accept();
        let incoming = self.incoming.clone();
        Promise::from_future(async move {
            let library = accepted.await?;
            Ok(Box::new(Line { library, incoming }) as Box<dyn Connection<Side>>)
        })
    }

    fn drive_until_shutdown(&mut self) -> Promise<(), Error> {
        self.library.drive_until_shutdown()
    }
}

struct Line<R> {
    library: Box<dyn Connection<Side>>,
    incoming: Resting<R>,
}

impl<R: AsyncRead + Unpin + 'static> Connection<Side> for Line<R> {
    fn get_peer_vat_id(&self) -> Side {
        self.library.get_peer_vat_id()
    }

    fn new_outgoing_message(&mut self, first_segment_word_size: u32) -> Box<dyn OutgoingMessage> {
        let words = match room::take_words() {
            0 => first_segment_word_size,
            asked => asked,
        };
        self.library.new_outgoing_message(words)
    }

    fn receive_incoming_message(&mut self) -> Promise<Option<Box<dyn IncomingMessage>>, Error> {
        let resting = self.incoming.clone();
        let Some(mut incoming) = resting.take() else {
            return Promise::err(Error::failed(
                "a second one reads, or a reader has gone".into(),
            ));
        };
        Promise::from_future(async move {
            let message = poll_fn(|cx| incoming.poll_next(cx)).await?;
            resting.replace(Some(incoming));
            Ok(message.map(|message| Box::new(Message(message)) as Box<dyn IncomingMessage>))
        })
    }

    fn new_stream(&mut self) -> (Box<dyn FlowController>, Promise<(), Error>) {
        self.library.new_stream()
    }

    fn shutdown(&mut self, result: capnp::Result<()>) -> Promise<(), Error> {
        self.library.shutdown(result)
    }
}

struct Message(Reader<Held>);

impl IncomingMessage for Message {
    fn get_body(&self) -> capnp::Result<any_pointer::Reader<'_>> {
        self.0.get_root()
    }
}

#[cfg(test)]
mod tests {
    use super::{Network, room};
    use capnp::message::ReaderOptions;
    use capnp_rpc::VatNetwork;
    use capnp_rpc::rpc_twoparty_capnp::Side;

    #[test]
    fn a_message_that_room_was_asked_for_is_one_segment() {
        let (read, write) = (futures::io::empty(), futures::io::sink());
        let mut network = Network::new(read, write, Side::Client, ReaderOptions::new());
        let mut line = network.connect(Side::Server).expect("the other side");
        let records = room::records_room(100, 100 << 10);
        let mut segments = |bytes| {
            let mut message = room::with_room(bytes, || line.new_outgoing_message(1_024));
            for _ in 0..10 {
                let body = message.get_body().unwrap();
                body.initn_as::<capnp::data::Builder<'_>>(10 << 10);
            }
            message.take().get_segments_for_output().len()
        };
        assert_eq!(segments(records), 1);
        assert!(segments(0) > 1, "what the library takes by itself");
        assert_eq!(segments(records), 1);
    }
}
