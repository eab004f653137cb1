//! Which part of a node a connection is for. Without a word it is for the shard that accepts it; a node
//! that has something for another one's control core says so in its first bytes, and the accepting
//! shard hands the socket on. Raft then crosses no executor on its way.
//!
//! What this file keeps true: the word is no beginning of a Cap'n Proto message, so neither is ever taken for
//! the other; a node that does not know the word ends the connection, and is spoken to without it.

use crate::error::WireError;
use futures::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use glommio::net::TcpStream;
use std::io;

/// The word: as the first word of a Cap'n Proto message it would announce 0x4152414f segments.
const CONTROL: [u8; 8] = *b"NARADCTL";

/// Whom a connection is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Door {
    /// Whoever accepts it: the client interface, and the one between nodes as a whole.
    #[default]
    Shard,
    /// The control core: of the interface between nodes, what it answers itself.
    Control,
}

impl Door {
    /// Says it on a new connection, before anything else.
    ///
    /// # Errors
    /// What the stream says.
    pub(super) async fn say<S: AsyncWrite + Unpin>(self, stream: &mut S) -> io::Result<()> {
        match self {
            Self::Shard => Ok(()),
            Self::Control => {
                stream.write_all(&CONTROL).await?;
                stream.flush().await
            }
        }
    }

    /// Hears it on an accepted connection, whose peer always speaks first; takes nothing else off it.
    ///
    /// # Errors
    /// [`WireError::Disconnected`] when the peer went away, or said half a word.
    pub async fn hear(stream: &mut TcpStream) -> Result<Self, WireError> {
        let ended = |error: io::Error| WireError::Disconnected {
            message: error.to_string(),
        };
        let mut first = [0];
        let got = stream.peek(&mut first).await;
        if got.map_err(|error| ended(error.into()))? == 0 {
            return Err(ended(io::ErrorKind::UnexpectedEof.into()));
        }
        if first[0] != CONTROL[0] {
            return Ok(Self::Shard);
        }
        let mut word = [0; CONTROL.len()];
        stream.read_exact(&mut word).await.map_err(ended)?;
        if word == CONTROL {
            Ok(Self::Control)
        } else {
            Err(ended(io::Error::other("it began with an unknown word")))
        }
    }
}
