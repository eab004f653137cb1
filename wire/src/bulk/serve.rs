//! One stream at the sending side.
//!
//! What this file keeps true: every request gets exactly one response header; after an `Ok` header
//! come exactly the bytes of the range or the connection ends; the session is checked again before
//! each chunk, so a closed session stops a range under way.

use super::header::{BulkStatus, HeaderError, REQUEST_BYTES, RangeRequest, Response};
use super::sender::{SendError, Sender, open_direct};
use super::server::Shared;
use crate::limits;
use crate::runtime::{Behind, stand};
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Why a stream ended, for the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamEnd {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("range broke off after {sent} of {len} bytes: {error}")]
    Interrupted {
        sent: u64,
        len: u64,
        error: SendError,
    },
    #[error("the session was closed after {sent} of {len} bytes")]
    Closed { sent: u64, len: u64 },
    #[error("{0}")]
    Header(HeaderError),
}

/// The next header, or `None` when the receiver has closed between two requests.
fn next_header(mut stream: &TcpStream) -> io::Result<Option<[u8; REQUEST_BYTES]>> {
    let mut bytes = [0; REQUEST_BYTES];
    let mut got = 0;
    while got < REQUEST_BYTES {
        match stream.read(&mut bytes[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(bytes))
}

fn respond(mut stream: &TcpStream, response: &Response) -> io::Result<()> {
    stream.write_all(&response.encode())
}

fn refusal(status: BulkStatus, crc: u32, from: u64, durable_len: u64) -> Response {
    Response {
        status,
        request_crc: crc,
        from,
        len: 0,
        durable_len,
    }
}

/// All threads are taken: reads the request that is on its way, so that closing does not reset the
/// connection under the answer, and answers.
pub(super) fn refuse_busy(stream: &TcpStream) {
    let wait = Duration::from_millis(limits::BULK_REFUSE_MS);
    let told = (|| {
        stream.set_read_timeout(Some(wait))?;
        stream.set_write_timeout(Some(wait))?;
        let header = next_header(stream)?;
        let request = header.and_then(|bytes| RangeRequest::decode(&bytes).ok());
        let (crc, from) = request.map_or((0, 0), |(request, crc)| (crc, request.from));
        respond(stream, &refusal(BulkStatus::Busy, crc, from, 0))
    })();
    if let Err(error) = told {
        tracing::debug!(%error, "bulk stream turned away without a word");
    }
}

/// The segment that a stream read last; most requests go on in it.
struct Opened {
    path: Arc<PathBuf>,
    file: File,
}

/// Serves a stream until the receiver closes it, something breaks, or it is idle for too long.
pub(super) fn serve(shared: &Shared, stream: &TcpStream) -> Result<(), StreamEnd> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(shared.idle))?;
    stream.set_write_timeout(Some(shared.idle))?;
    let mut opened: Option<Opened> = None;
    let mut sender: Option<Sender> = None;
    let result = loop {
        let header = match next_header(stream) {
            Ok(Some(header)) => header,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.into()),
        };
        match answer(shared, stream, &header, &mut opened, &mut sender) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            // The pipe may hold bytes of the broken range: it is dropped, not recycled.
            Err(error) => return Err(error),
        }
    };
    if let Some(sender) = sender {
        sender.recycle(&shared.pipes);
    }
    result
}

/// Answers one request; false ends the stream.
fn answer(
    shared: &Shared,
    stream: &TcpStream,
    header: &[u8; REQUEST_BYTES],
    opened: &mut Option<Opened>,
    sender: &mut Option<Sender>,
) -> Result<bool, StreamEnd> {
    let refuse = |status: BulkStatus, crc, from, durable_len| {
        shared.refused.fetch_add(1, Ordering::Relaxed);
        respond(stream, &refusal(status, crc, from, durable_len))
    };
    let (request, crc) = match RangeRequest::decode(header) {
        Ok(decoded) => decoded,
        Err(error) => {
            let status = match error {
                HeaderError::Unknown { .. } => BulkStatus::Unsupported,
                HeaderError::Magic(_) | HeaderError::Checksum => BulkStatus::BadRequest,
            };
            refuse(status, 0, 0, 0)?;
            return Err(StreamEnd::Header(error));
        }
    };
    if shared.is_stopping() {
        refuse(BulkStatus::Stopping, crc, request.from, 0)?;
        return Ok(false);
    }
    let grant = match shared.sessions.grant(&request) {
        Ok(grant) => grant,
        Err((status, durable_len)) => {
            *opened = None;
            refuse(status, crc, request.from, durable_len)?;
            return Ok(!status.ends_connection());
        }
    };
    let ready = ready(shared, &grant.path, opened, sender);
    let (file, sender) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            tracing::warn!(%error, path = %grant.path.display(), "cannot serve a segment");
            refuse(BulkStatus::Io, crc, request.from, grant.durable_len)?;
            return Ok(true);
        }
    };
    respond(
        stream,
        &Response {
            status: BulkStatus::Ok,
            request_crc: crc,
            from: request.from,
            len: request.len,
            durable_len: grant.durable_len,
        },
    )?;
    let sent = send_range(shared, stream, &request, file, sender);
    // The next request may be one that somebody waits for.
    stand(None);
    match &sent {
        Ok(()) => shared.ranges.fetch_add(1, Ordering::Relaxed),
        Err(_) => shared.interrupted.fetch_add(1, Ordering::Relaxed),
    };
    sent.map(|()| true)
}

/// The file and the way to send it, kept between requests.
fn ready<'a>(
    shared: &Shared,
    path: &Arc<PathBuf>,
    opened: &'a mut Option<Opened>,
    sender: &'a mut Option<Sender>,
) -> io::Result<(&'a File, &'a mut Sender)> {
    if opened.as_ref().is_none_or(|open| open.path != *path) {
        *opened = Some(Opened {
            path: path.clone(),
            file: open_direct(path)?,
        });
    }
    if sender.is_none() {
        *sender = Some(Sender::new(shared.path, &shared.pipes)?);
    }
    match (opened, sender) {
        (Some(opened), Some(sender)) => Ok((&opened.file, sender)),
        _ => unreachable!("both were set above"),
    }
}

fn send_range(
    shared: &Shared,
    stream: &TcpStream,
    request: &RangeRequest,
    file: &File,
    sender: &mut Sender,
) -> Result<(), StreamEnd> {
    let len = request.len;
    let mut sent = 0;
    while sent < len {
        let left = usize::try_from(len - sent).unwrap_or(usize::MAX);
        let mut chunk = left.min(sender.chunk());
        if !request.drain {
            chunk = shared.pace(shared.piece(chunk), sent > 0);
        }
        if sent > 0 && (shared.is_stopping() || shared.sessions.grant(request).is_err()) {
            return Err(StreamEnd::Closed { sent, len });
        }
        let more = chunk < left;
        let turn = || (!request.drain).then(|| shared.reading(chunk));
        stand((!request.drain && shared.gives_way()).then_some(Behind::Much));
        let from = request.from + sent;
        let outcome = sender.send(file, from, chunk, more, stream, turn);
        let n = outcome.map_err(|error| {
            if matches!(error, SendError::Read(_)) {
                tracing::warn!(%error, at = from, "a range broke off");
            }
            StreamEnd::Interrupted { sent, len, error }
        })? as u64;
        sent += n;
        shared.sent_bytes.fetch_add(n, Ordering::Relaxed);
    }
    Ok(())
}
