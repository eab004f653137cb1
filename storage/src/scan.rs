//! The incremental verifier of a segment's bytes, used by recovery, staging, scrub and `verify`.
//!
//! What this file keeps true: fed the bytes of a segment in pieces of any size, it reports each intact
//! frame once and every place where frames are damaged or missing, and it keeps the running digest.
//! It trusts nothing but checksums, and never panics on any input.

use crate::format::FormatError;
use crate::format::frame::{FRAME_MAGIC, FrameHeader};
use crate::format::list::Totals;
use crate::format::segment::{SegmentHeader, SegmentIdent};
use crate::format::{u32_at, u64_at};
use crate::limits::{FRAME_ALIGN_BYTES, FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use narad_core::ids::Offset;

/// A place where the bytes are not what was written, or where records are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// Sums of everything before it; `before.len` is the place.
    pub before: Totals,
    /// Position at which intact bytes go on.
    pub to: u64,
    /// First offset that is missing.
    pub from: Offset,
    /// Offset at which records go on, where that is known.
    pub until: Option<Offset>,
}

/// What a scan meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanEvent {
    /// An intact frame, whose header is at `pos`.
    Frame {
        /// Position of the header.
        pos: u64,
        /// The header.
        header: FrameHeader,
        /// Sums before this frame.
        before: Totals,
    },
    /// Damaged or missing frames.
    Hole(Hole),
    /// An intact frame whose offsets were there already; its records do not count.
    Repeated {
        /// Position of the header.
        pos: u64,
        /// The header.
        header: FrameHeader,
    },
}

/// The first hole of the segment that was written to last at which its tail is torn, when everything
/// below `durable` is known to have been synced. What is torn was never acked and is cut; a hole below
/// is damage and stays.
#[must_use]
pub fn torn_tail(holes: &[Hole], durable: Offset) -> Option<Hole> {
    holes
        .iter()
        .find(|hole| hole.from >= durable && hole.until != Some(hole.from))
        .copied()
}

/// Why the bytes cannot be scanned at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The segment was written by a newer version.
    #[error("format version {0} is newer than this program knows")]
    Newer(u32),
    /// The segment is another one.
    #[error("the bytes are of {0}")]
    Foreign(SegmentIdent),
}

#[derive(Clone, Debug)]
enum State {
    /// Before the segment header.
    Start,
    /// Skips the rest of the header block, then frames follow.
    Frames,
    Payload {
        header: FrameHeader,
        pos: u64,
        left: usize,
        pad: usize,
        crc: u32,
        before: Totals,
    },
}

/// See the module.
#[derive(Clone, Debug)]
pub struct FrameScanner {
    ident: SegmentIdent,
    seed: u32,
    state: State,
    carry: Vec<u8>,
    pos: u64,
    digest: u32,
    edge: Totals,
    lost: Option<Totals>,
    max_durable_end: Offset,
    header_damaged: bool,
}

impl FrameScanner {
    /// Scans from the start of the segment.
    #[must_use]
    pub fn new(ident: SegmentIdent) -> Self {
        Self {
            ident,
            seed: ident.seed(),
            state: State::Start,
            carry: Vec::new(),
            pos: 0,
            digest: 0,
            edge: Totals::empty(ident.id.base),
            lost: None,
            max_durable_end: Offset(0),
            header_damaged: false,
        }
    }

    /// Goes on behind `done`, a place between two frames that an earlier scan has reached.
    #[must_use]
    pub fn resume(ident: SegmentIdent, done: Totals) -> Self {
        let mut scanner = Self::new(ident);
        if done.len > 0 {
            scanner.state = State::Frames;
            scanner.pos = done.len;
            scanner.digest = done.digest;
            scanner.edge = done;
        }
        scanner
    }

    /// Bytes fed so far (with those before a resumed place).
    #[must_use]
    pub fn fed(&self) -> u64 {
        self.pos + self.carry.len() as u64
    }

    /// CRC32C of all bytes fed.
    #[must_use]
    pub fn digest(&self) -> u32 {
        crc32c::crc32c_append(self.digest, &self.carry)
    }

    /// Offset after the last frame, intact or with at least an intact header.
    #[must_use]
    pub const fn end(&self) -> Offset {
        self.edge.end
    }

    /// Sums up to the end of the last frame with an intact header.
    #[must_use]
    pub const fn edge(&self) -> &Totals {
        &self.edge
    }

    /// Sums over everything fed so far, as if the segment ended here.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            len: self.fed(),
            digest: self.digest(),
            ..self.edge
        }
    }

    /// Highest durable end that any intact header names.
    #[must_use]
    pub const fn max_durable_end(&self) -> Offset {
        self.max_durable_end
    }

    /// The segment header could not be read; the identity is the one that was given.
    #[must_use]
    pub const fn header_damaged(&self) -> bool {
        self.header_damaged
    }

    /// No frame is cut off here: what was fed ends between two frames.
    #[must_use]
    pub fn between_frames(&self) -> bool {
        matches!(self.state, State::Frames) && self.carry.is_empty() && self.lost.is_none()
    }

    /// Bytes that the current frame still needs; 0 between frames or when that is not known.
    #[must_use]
    pub const fn until_frame_end(&self) -> u64 {
        match self.state {
            State::Payload { left, pad, .. } => (left + pad) as u64,
            State::Start | State::Frames => 0,
        }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// [`ScanError`] when the segment cannot be this one; the scanner is of no use afterwards.
    pub fn feed(&mut self, data: &[u8], sink: &mut dyn FnMut(ScanEvent)) -> Result<(), ScanError> {
        let mut at = 0;
        while at < data.len() {
            if let State::Payload { .. } = self.state {
                at += self.payload(&data[at..], sink);
                continue;
            }
            let rest = &data[at..];
            if self.carry.is_empty() {
                let used = self.window(rest, sink)?;
                if used == 0 {
                    self.carry.extend_from_slice(rest);
                    at = data.len();
                } else {
                    at += used;
                }
                continue;
            }
            // A window that straddles two pieces: look at it in the carry, then give back what
            // came from this piece.
            let old = self.carry.len();
            let take = rest
                .len()
                .min(FRAME_HEADER_BYTES.saturating_sub(old))
                .max(1);
            self.carry.extend_from_slice(&rest[..take]);
            let window = std::mem::take(&mut self.carry);
            let used = self.window(&window, sink)?;
            if used == 0 {
                self.carry = window;
                at += take;
            } else if used >= old {
                at += used - old;
            } else {
                self.carry = window[used..].to_vec();
                at += take;
            }
        }
        Ok(())
    }

    /// The stream ends here: what is incomplete is a hole.
    pub fn finish(&mut self, sink: &mut dyn FnMut(ScanEvent)) {
        match self.state {
            State::Payload { before, .. } => {
                let lost = *self.lost.get_or_insert(before);
                sink(ScanEvent::Hole(Hole {
                    before: lost,
                    to: self.fed(),
                    from: lost.end,
                    until: None,
                }));
            }
            State::Start | State::Frames => {
                let carried = self.carry.iter().any(|b| *b != 0);
                let lost = match self.lost {
                    None if carried => Some(self.edge),
                    lost => lost,
                };
                if let Some(before) = lost {
                    sink(ScanEvent::Hole(Hole {
                        before,
                        to: self.fed(),
                        from: before.end,
                        until: None,
                    }));
                }
            }
        }
    }

    fn consume(&mut self, bytes: &[u8]) {
        self.digest = crc32c::crc32c_append(self.digest, bytes);
        self.pos += bytes.len() as u64;
    }

    /// Looks at bytes that begin at `self.pos`; returns how many it took, 0 for "more needed".
    fn window(
        &mut self,
        window: &[u8],
        sink: &mut dyn FnMut(ScanEvent),
    ) -> Result<usize, ScanError> {
        if let State::Start = self.state {
            return self.segment_header(window);
        }
        if window.len() < FRAME_ALIGN_BYTES {
            return Ok(0);
        }
        let blank = window
            .chunks_exact(FRAME_ALIGN_BYTES)
            .take_while(|w| u64_at(w, 0) == 0)
            .count()
            * FRAME_ALIGN_BYTES;
        if blank > 0 {
            self.consume(&window[..blank]);
            return Ok(blank);
        }
        if u32_at(window, 0) == FRAME_MAGIC {
            if window.len() < FRAME_HEADER_BYTES {
                return Ok(0);
            }
            if let Some(header) = FrameHeader::decode(window, self.seed) {
                self.begin_frame(header, &window[..FRAME_HEADER_BYTES], sink);
                return Ok(FRAME_HEADER_BYTES);
            }
        }
        self.lost.get_or_insert(self.edge);
        self.consume(&window[..FRAME_ALIGN_BYTES]);
        Ok(FRAME_ALIGN_BYTES)
    }

    fn segment_header(&mut self, window: &[u8]) -> Result<usize, ScanError> {
        if window.len() < SEGMENT_HEADER_BYTES {
            return Ok(0);
        }
        match SegmentHeader::decode(window) {
            Ok(header) if header.ident == self.ident => {}
            Ok(header) => return Err(ScanError::Foreign(header.ident)),
            Err(FormatError::Newer(version)) => return Err(ScanError::Newer(version)),
            Err(FormatError::Damaged(_)) => self.header_damaged = true,
        }
        self.state = State::Frames;
        self.consume(&window[..SEGMENT_HEADER_BYTES]);
        self.edge.len = self.pos;
        self.edge.digest = self.digest;
        Ok(SEGMENT_HEADER_BYTES)
    }

    fn begin_frame(&mut self, header: FrameHeader, bytes: &[u8], sink: &mut dyn FnMut(ScanEvent)) {
        let pos = self.pos;
        self.max_durable_end = self.max_durable_end.max(header.durable_end);
        let lost = self.lost.take();
        if header.base > self.edge.end || (lost.is_some() && header.base == self.edge.end) {
            // Bytes were lost, or whole frames are missing although the bytes between are blank.
            sink(ScanEvent::Hole(Hole {
                before: lost.unwrap_or(self.edge),
                to: pos,
                from: self.edge.end,
                until: Some(header.base),
            }));
            self.edge = Totals {
                len: pos,
                digest: self.digest,
                end: header.base,
                missing: self.edge.missing + (header.base.0 - self.edge.end.0),
                ..self.edge
            };
        }
        self.consume(bytes);
        let len = header.payload_len as usize;
        self.state = State::Payload {
            header,
            pos,
            left: len,
            pad: header.total_len() as usize - FRAME_HEADER_BYTES - len,
            crc: self.seed,
            before: self.edge,
        };
        if len == 0 && self.pad_left() == 0 {
            self.end_frame(sink);
        }
    }

    const fn pad_left(&self) -> usize {
        match self.state {
            State::Payload { pad, .. } => pad,
            State::Start | State::Frames => 0,
        }
    }

    fn payload(&mut self, data: &[u8], sink: &mut dyn FnMut(ScanEvent)) -> usize {
        let State::Payload { left, pad, crc, .. } = &mut self.state else {
            return 0;
        };
        let body = data.len().min(*left);
        *crc = crc32c::crc32c_append(*crc, &data[..body]);
        *left -= body;
        let padding = (data.len() - body).min(*pad);
        *pad -= padding;
        let done = *left == 0 && *pad == 0;
        self.consume(&data[..body + padding]);
        if done {
            self.end_frame(sink);
        }
        body + padding
    }

    fn end_frame(&mut self, sink: &mut dyn FnMut(ScanEvent)) {
        let State::Payload {
            header,
            pos,
            crc,
            before,
            ..
        } = std::mem::replace(&mut self.state, State::Frames)
        else {
            return;
        };
        self.edge.len = self.pos;
        self.edge.digest = self.digest;
        if header.base < self.edge.end {
            sink(ScanEvent::Repeated { pos, header });
            return;
        }
        let count = u64::from(header.record_count);
        self.edge.end = header.end();
        if crc != header.payload_crc {
            self.edge.missing += count;
            sink(ScanEvent::Hole(Hole {
                before,
                to: self.pos,
                from: header.base,
                until: Some(header.end()),
            }));
            return;
        }
        self.edge.records += count;
        self.edge.first_time = self.edge.first_time.min(header.first_time);
        self.edge.last_time = self.edge.last_time.max(header.last_time);
        sink(ScanEvent::Frame {
            pos,
            header,
            before,
        });
    }
}
