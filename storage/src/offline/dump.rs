//! `narad dump`: one file, for people.
//!
//! What this file keeps true: any file is described as far as it can be read; damage is printed where it
//! stands.

use super::{owner_of, scan};
use crate::disk::read_small_now;
use crate::error::StorageError;
use crate::format::list::SegmentList;
use crate::format::meta::Meta;
use crate::format::record::Records;
use crate::format::segment::{SegmentHeader, SegmentIdent, parse_file_name};
use crate::limits::{FRAME_HEADER_BYTES, MAX_LIST_BYTES, META_SLOT_BYTES};
use crate::scan::ScanEvent;
use crate::store::meta::META_FILE;
use std::fs::File;
use std::io::{self, Read as _, Write};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const SHOWN_BYTES: usize = 80;

/// Describes a segment, meta, list, identity or staged manifest file.
///
/// # Errors
/// The disk's error, or that of `out`.
pub fn dump(path: &Path, out: &mut dyn Write) -> Result<(), StorageError> {
    let fail = |e| StorageError::io("dump", path, e);
    let mut head = [0; 8];
    let got = File::open(path)
        .and_then(|mut f| f.read(&mut head))
        .map_err(fail)?;
    match &head[..got] {
        b"NARADMET" => dump_meta(path, out).map_err(fail),
        // The first slot may not have been written yet.
        _ if path.file_name().is_some_and(|n| n == META_FILE) => dump_meta(path, out).map_err(fail),
        b"NARADLST" => dump_list(path, out).map_err(fail),
        _ if path.extension().is_some_and(|e| e == "seg") => dump_segment(path, out),
        _ if path.extension().is_some_and(|e| e == "json") => {
            let bytes = read_small_now(path, MAX_LIST_BYTES).map_err(fail)?;
            let bytes = bytes.unwrap_or_default();
            writeln!(out, "{}", bytes.escape_ascii()).map_err(fail)
        }
        _ => Err(StorageError::damaged(
            path,
            "this is no segment (*.seg), meta, list or JSON file of a node",
        )),
    }
}

fn dump_meta(path: &Path, out: &mut dyn Write) -> io::Result<()> {
    let bytes = read_small_now(path, 2 * META_SLOT_BYTES)?.unwrap_or_default();
    for slot in 0..2 {
        let bytes = bytes.get(slot * META_SLOT_BYTES..).unwrap_or(&[]);
        match Meta::decode(bytes) {
            Ok(meta) => writeln!(out, "slot {slot}: {meta:#?}")?,
            Err(error) => writeln!(out, "slot {slot}: {error:?}")?,
        }
    }
    Ok(())
}

fn dump_list(path: &Path, out: &mut dyn Write) -> io::Result<()> {
    let bytes = read_small_now(path, MAX_LIST_BYTES)?.unwrap_or_default();
    match SegmentList::decode(&bytes) {
        Ok(list) => {
            writeln!(out, "list of {}, epoch {}", list.owner, list.epoch)?;
            for e in &list.entries {
                let t = &e.totals;
                let state = if e.active { "active" } else { "sealed" };
                writeln!(
                    out,
                    "{} epoch {} {state}: offsets {}..{}, {} records, {} missing, {} bytes, digest {:08x}, times {}..{}",
                    e.id.base,
                    e.id.epoch,
                    e.id.base,
                    t.end,
                    t.records,
                    t.missing,
                    t.len,
                    t.digest,
                    t.first_time,
                    t.last_time
                )?;
            }
            for (wal, (seq, end)) in &list.marks {
                writeln!(out, "mark: WAL {:016x} up to {seq} (offset {end})", wal.0)?;
            }
            Ok(())
        }
        Err(error) => writeln!(out, "{error:?}"),
    }
}

fn identity(path: &Path, out: &mut dyn Write) -> Result<SegmentIdent, StorageError> {
    let fail = |e| StorageError::io("dump", path, e);
    let mut head = [0; 64];
    let whole = File::open(path).and_then(|mut f| f.read_exact(&mut head));
    if whole.is_ok()
        && let Ok(header) = SegmentHeader::decode(&head)
    {
        writeln!(
            out,
            "{}, block {}, made at {}",
            header.ident, header.block, header.created_ms
        )
        .map_err(fail)?;
        return Ok(header.ident);
    }
    writeln!(out, "header damaged; going by the file's name").map_err(fail)?;
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let id = parse_file_name(name);
    let parent = std::path::absolute(path).map_err(fail)?;
    let owner = parent.parent().and_then(owner_of);
    match (id, owner) {
        (Some(id), Some(owner)) => Ok(SegmentIdent { owner, id }),
        _ => Err(StorageError::damaged(
            path,
            "neither header nor name tell whose segment it is",
        )),
    }
}

fn dump_segment(path: &Path, out: &mut dyn Write) -> Result<(), StorageError> {
    let fail = |e| StorageError::io("dump", path, e);
    let ident = identity(path, out)?;
    let file = File::open(path).map_err(fail)?;
    let len = file.metadata().map_err(fail)?.len();
    let mut result = Ok(());
    let mut sink = |event| {
        if result.is_ok() {
            result = dump_event(&file, &event, out);
        }
    };
    let mut scanner = scan(path, ident, len, &mut sink)?;
    scanner.finish(&mut sink);
    result.map_err(fail)?;
    let t = scanner.edge();
    writeln!(
        out,
        "{} records, {} missing, offsets up to {}, {} bytes with digest {:08x}, file {len} bytes",
        t.records, t.missing, t.end, t.len, t.digest
    )
    .map_err(fail)
}

fn dump_event(file: &File, event: &ScanEvent, out: &mut dyn Write) -> io::Result<()> {
    match event {
        ScanEvent::Frame { pos, header, .. } => {
            write!(
                out,
                "@{pos} frame {}..{} ({} bytes, durable below {}",
                header.base,
                header.end(),
                header.payload_len,
                header.durable_end
            )?;
            if let Some(origin) = header.origin {
                write!(out, ", from WAL {:016x} up to {}", origin.wal.0, origin.seq)?;
            }
            writeln!(out, ")")?;
            let mut payload = vec![0; header.payload_len as usize];
            file.read_exact_at(&mut payload, pos + FRAME_HEADER_BYTES as u64)?;
            let records = Records::new(&payload, header.first_time, header.record_count);
            for (i, record) in records.enumerate() {
                let key = record.key.map_or(String::from("-"), shown);
                writeln!(
                    out,
                    "  {} time {} key {key} value {} ({} bytes)",
                    header.base.plus(i as u64),
                    record.time,
                    shown(record.value),
                    record.value.len()
                )?;
            }
            Ok(())
        }
        ScanEvent::Hole(hole) => writeln!(
            out,
            "@{} to {}: no intact frames, offsets from {}{}",
            hole.before.len,
            hole.to,
            hole.from,
            hole.until.map_or(String::new(), |u| format!(" to {u}"))
        ),
        ScanEvent::Repeated { pos, header } => {
            writeln!(out, "@{pos} frame repeats offset {}", header.base)
        }
    }
}

fn shown(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(SHOWN_BYTES)];
    let more = if cut.len() < bytes.len() { "..." } else { "" };
    format!("\"{}\"{more}", cut.escape_ascii())
}
