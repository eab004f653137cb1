//! The receiving side, on glommio.
//!
//! What this file keeps true: bytes are handed out in the order of the requests and never across
//! the end of a range; every byte handed out was announced by a response header that answers
//! exactly the request at the head of the queue; after an interruption nothing more is read from
//! the stream.

use super::arrival::Arrival;
use super::header::{BulkStatus, HeaderError, RESPONSE_BYTES, RangeRequest, Response};
use crate::error::WireError;
use crate::limits;
use futures::io::AsyncWriteExt;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Why bytes did not come.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BulkError {
    /// No connection.
    #[error("cannot connect to the bulk port {addr}: {message}")]
    Connect {
        /// Where to.
        addr: String,
        /// What the system said.
        message: String,
    },
    /// The source refused this request; later ones may be granted unless the status ends the
    /// connection.
    #[error("range {}+{} of segment {}@{} refused: {}", request.from, request.len,
        request.segment.base, request.segment.epoch, status.explain())]
    Refused {
        /// Which request.
        request: RangeRequest,
        /// Why.
        status: BulkStatus,
        /// Durable length at the source, 0 where it was not told.
        durable_len: u64,
    },
    /// The connection ended, or was silent for too long, inside a range. What has been handed out
    /// is good as far as the transport can tell; connect again and ask for the rest.
    #[error("the bulk stream broke off after {received} of {} bytes: {message}", request.len)]
    Interrupted {
        /// The range under way.
        request: RangeRequest,
        /// Bytes of it that came.
        received: u64,
        /// What happened.
        message: String,
    },
    /// The other side does not keep to the protocol.
    #[error("unexpected bytes on the bulk stream: {message}")]
    Protocol {
        /// What was wrong.
        message: String,
    },
    /// More requests ahead than [`BULK_PIPELINE`](crate::limits::BULK_PIPELINE); read first.
    #[error("too many ranges are asked for already; read them first")]
    PipelineFull,
    /// The stream broke before; connect again.
    #[error("the bulk stream is broken; connect again")]
    Broken,
}

impl From<HeaderError> for BulkError {
    fn from(error: HeaderError) -> Self {
        Self::Protocol {
            message: error.to_string(),
        }
    }
}

impl From<BulkError> for WireError {
    fn from(error: BulkError) -> Self {
        match error {
            BulkError::Connect { addr, message } => Self::Connect {
                addr,
                message,
                retry_after_ms: 0,
            },
            other => Self::Disconnected {
                message: other.to_string(),
            },
        }
    }
}

struct Asked {
    request: RangeRequest,
    crc: u32,
    /// Bytes of the range that came; `None` until its response header has come.
    received: Option<u64>,
}

/// A stream of ranges from one source. Not `Send`; lives on the executor that connected it.
pub struct BulkStream {
    arrival: Arrival,
    asked: VecDeque<Asked>,
    broken: bool,
}

impl BulkStream {
    /// Connects to a node's bulk address with the default idle time.
    ///
    /// # Errors
    /// [`BulkError::Connect`].
    pub async fn connect(addr: &str) -> Result<Self, BulkError> {
        Self::connect_with(addr, Duration::from_millis(limits::BULK_IDLE_MS)).await
    }

    /// Connects; a read or write that makes no progress for `idle` breaks the stream.
    ///
    /// # Errors
    /// [`BulkError::Connect`].
    pub async fn connect_with(addr: &str, idle: Duration) -> Result<Self, BulkError> {
        let deadline = Duration::from_millis(limits::CONNECT_DEADLINE_MS);
        let failed = |message: String| BulkError::Connect {
            addr: addr.to_owned(),
            message,
        };
        let stream = crate::runtime::connect(addr, deadline)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let idle = Some(idle.max(Duration::from_millis(1)));
        stream
            .set_read_timeout(idle)
            .and_then(|()| stream.set_write_timeout(idle))
            .map_err(|error| failed(error.to_string()))?;
        Ok(Self {
            arrival: Arrival::new(stream),
            asked: VecDeque::new(),
            broken: false,
        })
    }

    /// Asks for a range; it is answered after those asked for before. Dropping the future may
    /// leave half a request on the wire: the stream counts as broken then.
    ///
    /// # Errors
    /// [`BulkError::PipelineFull`]; [`BulkError::Broken`]; [`BulkError::Interrupted`] when the
    /// connection has ended.
    pub async fn request(&mut self, request: RangeRequest) -> Result<(), BulkError> {
        if self.broken {
            return Err(BulkError::Broken);
        }
        if self.asked.len() >= limits::BULK_PIPELINE {
            return Err(BulkError::PipelineFull);
        }
        let (bytes, crc) = request.encode();
        self.broken = true;
        self.arrival
            .stream
            .write_all(&bytes)
            .await
            .map_err(|error| BulkError::Interrupted {
                request,
                received: 0,
                message: error.to_string(),
            })?;
        self.broken = false;
        self.asked.push_back(Asked {
            request,
            crc,
            received: None,
        });
        Ok(())
    }

    /// Ranges asked for and not fully read yet.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.asked.len()
    }

    /// The range that the next byte belongs to, and the byte's absolute offset in the segment.
    #[must_use]
    pub fn position(&self) -> Option<(&RangeRequest, u64)> {
        let head = self.asked.front()?;
        Some((
            &head.request,
            head.request.from + head.received.unwrap_or(0),
        ))
    }

    /// Fills `buf`, or as much of it as the range at the head of the queue still has; returns how
    /// many bytes that were. 0 only when nothing is asked for. Dropping the future loses bytes
    /// that came meanwhile: the stream counts as broken then.
    ///
    /// # Errors
    /// [`BulkError::Refused`] for the request at the head, which is done with;
    /// [`BulkError::Interrupted`] and [`BulkError::Protocol`] break the stream.
    pub async fn read_into(&mut self, buf: &mut [u8]) -> Result<usize, BulkError> {
        if self.broken {
            return Err(BulkError::Broken);
        }
        let Some(head) = self.asked.front_mut() else {
            return Ok(0);
        };
        if buf.is_empty() {
            return Ok(0);
        }
        self.broken = true;
        let request = head.request;
        let mut received = match head.received {
            Some(received) => received,
            None => {
                let response = read_header(&mut self.arrival, &request, head.crc).await?;
                if response.status != BulkStatus::Ok {
                    self.asked.pop_front();
                    self.broken = response.status.ends_connection();
                    return Err(BulkError::Refused {
                        request,
                        status: response.status,
                        durable_len: response.durable_len,
                    });
                }
                head.received = Some(0);
                0
            }
        };
        let left = usize::try_from(request.len - received).unwrap_or(usize::MAX);
        let want = buf.len().min(left);
        let mut got = 0;
        while got < want {
            let more = self.arrival.read(&mut buf[got..want]).await;
            let n = match more {
                Ok(n) if n > 0 => n,
                other => {
                    return Err(BulkError::Interrupted {
                        request,
                        received: received + got as u64,
                        message: end_of(other),
                    });
                }
            };
            got += n;
        }
        received += got as u64;
        if received == request.len {
            self.asked.pop_front();
        } else {
            head.received = Some(received);
        }
        self.broken = false;
        Ok(got)
    }
}

fn end_of(read: io::Result<usize>) -> String {
    match read {
        Ok(_) => "the source closed the connection".into(),
        Err(error) => error.to_string(),
    }
}

async fn read_header(
    arrival: &mut Arrival,
    request: &RangeRequest,
    crc: u32,
) -> Result<Response, BulkError> {
    let mut bytes = [0; RESPONSE_BYTES];
    let mut got = 0;
    while got < RESPONSE_BYTES {
        match arrival.read(&mut bytes[got..]).await {
            Ok(n) if n > 0 => got += n,
            other => {
                return Err(BulkError::Interrupted {
                    request: *request,
                    received: 0,
                    message: end_of(other),
                });
            }
        }
    }
    let response = Response::decode(&bytes)?;
    let granted = response.status == BulkStatus::Ok;
    let answers = response.request_crc == crc
        && response.from == request.from
        && response.len == if granted { request.len } else { 0 };
    // A source that could not read the request cannot name it.
    let anonymous = response.request_crc == 0 && response.status.ends_connection();
    if !(answers || anonymous) {
        return Err(BulkError::Protocol {
            message: "a response to another request".into(),
        });
    }
    Ok(response)
}
