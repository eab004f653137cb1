//! One connection of the admin port: read a request, answer it, close.
//!
//! What this file keeps true: what a client claims sizes nothing. The head, a body (which no path
//! takes) and the time for both are bounded before anything is carried out, and every answer ends
//! its connection.

use super::routes::Reply;
use crate::limits;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// What was asked.
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) url: String,
}

/// Why nothing is carried out.
pub(super) enum Rejected {
    /// The client gets to know.
    Answer(Reply),
    /// It is gone, or too slow: nobody would read an answer.
    Gone(Error),
}

impl From<Error> for Rejected {
    fn from(error: Error) -> Self {
        Self::Gone(error)
    }
}

/// A client's connection with the time that is left for it.
pub(super) struct Connection {
    stream: TcpStream,
    until: Instant,
}

impl Connection {
    pub(super) fn new(stream: TcpStream) -> Self {
        let mut connection = Self {
            stream,
            until: Instant::now(),
        };
        connection.give(limits::HTTP_READ_MS);
        connection
    }

    fn give(&mut self, time_ms: u64) {
        self.until = Instant::now() + Duration::from_millis(time_ms);
    }

    /// The time that is left.
    fn left(&self) -> Result<Duration> {
        match self.until.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        match self.stream.read(into) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            other => other,
        }
    }

    fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(self.left()?))?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads one request. A small body is read and not looked at.
    pub(super) fn request(&mut self) -> std::result::Result<Asked, Rejected> {
        let mut bytes = vec![0; limits::HTTP_HEAD_MAX_BYTES];
        let mut filled = 0;
        loop {
            filled += self.read(&mut bytes[filled..])?;
            if let Some(head) = parse(&bytes[..filled])? {
                let missing = head.body.saturating_sub(filled - head.length);
                if missing > 0 && head.wants_go_ahead {
                    self.write(b"HTTP/1.1 100 Continue\r\n\r\n")?;
                }
                self.skip(missing)?;
                return Ok(head.asked);
            }
            if filled == bytes.len() {
                return Err(Rejected::Answer(bad(
                    431,
                    "the head of the request is too large",
                )));
            }
        }
    }

    fn skip(&mut self, mut count: usize) -> Result<()> {
        let mut buffer = [0; 1024];
        while count > 0 {
            let part = count.min(buffer.len());
            count -= self.read(&mut buffer[..part])?;
        }
        Ok(())
    }

    /// Writes an answer and closes. `head_only`: the body is only told about.
    pub(super) fn answer(mut self, reply: &Reply, head_only: bool) -> Result<()> {
        self.give(limits::HTTP_WRITE_MS);
        let mut text = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
             Connection: close\r\n",
            reply.status,
            reason(reply.status),
            reply.content_type,
            reply.body.len()
        );
        if let Some(allow) = reply.allow {
            text.push_str(&format!("Allow: {allow}\r\n"));
        }
        text.push_str("\r\n");
        if !head_only {
            text.push_str(&reply.body);
        }
        self.write(text.as_bytes())?;
        self.stream.shutdown(Shutdown::Write)?;
        self.linger();
        Ok(())
    }

    /// Closing with unread bytes would reset the connection and could take the answer away from the
    /// client: some are read, for a moment, into the same small buffer.
    fn linger(&mut self) {
        self.give(limits::HTTP_LINGER_MS);
        let mut buffer = [0; 1024];
        for _ in 0..limits::HTTP_LINGER_READS {
            if self.read(&mut buffer).is_err() {
                return;
            }
        }
    }
}

struct Head {
    asked: Asked,
    /// Its length with the empty line, in bytes.
    length: usize,
    /// Of the body, in bytes; within the bound.
    body: usize,
    /// The client waits for a word before it sends the body.
    wants_go_ahead: bool,
}

fn bad(status: u16, message: &str) -> Reply {
    super::routes::problem(
        status,
        "invalid",
        message,
        "send a plain HTTP/1.1 request without a body; no path takes one",
    )
}

/// The head, if it is complete.
fn parse(bytes: &[u8]) -> std::result::Result<Option<Head>, Rejected> {
    let refuse = |status, message: &str| Err(Rejected::Answer(bad(status, message)));
    let mut headers = [httparse::EMPTY_HEADER; limits::HTTP_HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return refuse(431, "too many headers"),
        Err(error) => return refuse(400, &format!("this is no HTTP request: {error}")),
    };
    let mut body: Option<u64> = None;
    let mut wants_go_ahead = false;
    for header in request.headers.iter() {
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return refuse(413, "a body in chunks is not taken");
        } else if header.name.eq_ignore_ascii_case("content-length") {
            let told = std::str::from_utf8(header.value)
                .ok()
                .map(str::trim)
                .filter(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
            let Some(told) = told else {
                return refuse(400, "the Content-Length is no number");
            };
            // More digits than a number has: too large for sure.
            let told = told.parse().unwrap_or(u64::MAX);
            if body.is_some_and(|other| other != told) {
                return refuse(400, "two Content-Lengths that differ");
            }
            body = Some(told);
        } else if header.name.eq_ignore_ascii_case("expect") {
            wants_go_ahead = true;
        }
    }
    let body = match usize::try_from(body.unwrap_or(0)) {
        Ok(body) if body <= limits::HTTP_BODY_MAX_BYTES => body,
        _ => return refuse(413, "the body is too large"),
    };
    let asked = Asked {
        method: request.method.unwrap_or_default().to_owned(),
        url: request.path.unwrap_or_default().to_owned(),
    };
    Ok(Some(Head {
        asked,
        length,
        body,
        wants_go_ahead,
    }))
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        202 => "Accepted",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        410 => "Gone",
        413 => "Content Too Large",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> u16 {
        match parse(text.as_bytes()) {
            Ok(Some(_)) => 200,
            Ok(None) => 0,
            Err(Rejected::Answer(reply)) => reply.status,
            Err(Rejected::Gone(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn what_a_client_claims_is_bounded() {
        assert_eq!(status("GET / HTTP/1.1\r\nHost: a\r\n"), 0);
        assert_eq!(status("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 200);
        for (header, expected) in [
            ("Content-Length: 0", 200),
            ("Content-Length: 4096", 200),
            ("Content-Length: 4097", 413),
            ("content-length: 99999999999999", 413),
            ("Content-Length: 999999999999999999999999999999", 413),
            ("Content-Length: -1", 400),
            ("Content-Length: +1", 400),
            ("Content-Length:", 400),
            ("Content-Length: 1\r\nContent-Length: 2", 400),
            ("Transfer-Encoding: chunked", 413),
        ] {
            let text = format!("POST /healthz HTTP/1.1\r\n{header}\r\n\r\n");
            assert_eq!(status(&text), expected, "{header}");
        }
        assert_eq!(status("\u{1}\u{2}\r\n\r\n"), 400);
        let many = "A: b\r\n".repeat(limits::HTTP_HEADERS_MAX + 1);
        assert_eq!(status(&format!("GET / HTTP/1.1\r\n{many}\r\n")), 431);
    }
}
