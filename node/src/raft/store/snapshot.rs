//! The snapshot on disk: one file, replaced as a whole.
//!
//! Keeps true: at any moment the directory holds the old snapshot or the new one, complete and checksummed; an older
//! snapshot never replaces a newer one; the log is only purged behind a snapshot that is durable here.

use super::error::StoreError;
use super::files::{Closing, sync_dir, wait_for_room, write_all};
use crate::raft::limits::MAX_SNAPSHOT_BYTES;
use crate::raft::types::{Snapshot, SnapshotMeta};
use glommio::io::OpenOptions;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tokio::sync::Mutex;

const MAGIC: [u8; 8] = *b"NRDRAFTP";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
/// Bytes of one write or read: bounds what one disk operation holds up.
const PIECE_BYTES: usize = 512 << 10;

/// The sizes and checksums of a snapshot file.
struct Header {
    meta_len: u32,
    meta_crc: u32,
    data_len: u64,
    data_crc: u32,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[16..20].copy_from_slice(&self.meta_len.to_le_bytes());
        out[20..24].copy_from_slice(&self.meta_crc.to_le_bytes());
        out[24..32].copy_from_slice(&self.data_len.to_le_bytes());
        out[32..36].copy_from_slice(&self.data_crc.to_le_bytes());
        let crc = header_crc(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode(path: &Path, bytes: &[u8]) -> Result<Header, StoreError> {
        let bad = |what: &str| Err(StoreError::corrupt(path, 0, what));
        if bytes.len() < HEADER_BYTES || bytes[..8] != MAGIC {
            return bad("no snapshot header");
        }
        let word =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        if word(8) > VERSION {
            return Err(StoreError::NewerFormat {
                path: path.to_owned(),
                found: word(8),
                supported: VERSION,
            });
        }
        if word(12) != header_crc(&bytes[..HEADER_BYTES]) {
            return bad("the snapshot header's checksum is wrong");
        }
        let data_len = u64::from_le_bytes(bytes[24..32].try_into().expect("eight bytes"));
        Ok(Header {
            meta_len: word(16),
            meta_crc: word(20),
            data_len,
            data_crc: word(32),
        })
    }
}

fn header_crc(header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..HEADER_BYTES])
}

fn decode(path: &Path, bytes: &[u8]) -> Result<Snapshot, StoreError> {
    let header = Header::decode(path, bytes)?;
    let meta_end = HEADER_BYTES + header.meta_len as usize;
    let whole = (meta_end as u64).checked_add(header.data_len);
    if whole != Some(bytes.len() as u64) {
        return Err(StoreError::corrupt(
            path,
            bytes.len() as u64,
            "the snapshot has another length than its header says",
        ));
    }
    let (meta, data) = (&bytes[HEADER_BYTES..meta_end], &bytes[meta_end..]);
    if crc32c::crc32c(meta) != header.meta_crc {
        return Err(StoreError::corrupt(
            path,
            HEADER_BYTES as u64,
            "the checksum of the snapshot's description is wrong",
        ));
    }
    if crc32c::crc32c(data) != header.data_crc {
        return Err(StoreError::corrupt(
            path,
            meta_end as u64,
            "the checksum of the snapshot's content is wrong",
        ));
    }
    let meta = serde_json::from_slice(meta).map_err(|error| {
        StoreError::corrupt(
            path,
            HEADER_BYTES as u64,
            format!("the description does not parse: {error}"),
        )
    })?;
    Ok(Snapshot {
        meta,
        snapshot: data.to_vec(),
    })
}

/// At start-up, with blocking I/O: removes a snapshot that was being written, checks the one that is there.
pub(super) fn check(dir: &Path) -> Result<Option<SnapshotMeta>, StoreError> {
    let (path, unfinished) = (dir.join("snapshot"), dir.join("snapshot.tmp"));
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(StoreError::io(&unfinished, "remove")(error));
        }
        _ => {}
    }
    match std::fs::read(&path) {
        Ok(bytes) => decode(&path, &bytes).map(|snapshot| Some(snapshot.meta)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io(&path, "read")(error)),
    }
}

/// Writes and syncs a file, from scratch.
async fn write_file(path: &Path, head: &[u8], data: &[u8]) -> Result<(), StoreError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .buffered_open(path)
        .await;
    let file = file.map_err(StoreError::io(path, "create"))?;
    let mut at = 0;
    for piece in std::iter::once(head).chain(data.chunks(PIECE_BYTES)) {
        write_all(&file, path, piece.to_vec(), at).await?;
        at += piece.len() as u64;
    }
    file.fdatasync()
        .await
        .map_err(StoreError::io(path, "sync"))?;
    file.close().await.map_err(StoreError::io(path, "close"))
}

/// The snapshot file of a Raft directory. A clone is another handle to the same file.
#[derive(Clone)]
pub struct SnapshotFile {
    dir: Rc<PathBuf>,
    current: Rc<RefCell<Option<SnapshotMeta>>>,
    busy: Rc<Mutex<()>>,
    closing: Closing,
}

impl SnapshotFile {
    /// `current`: what [`check`] found.
    pub(super) fn new(dir: &Path, current: Option<SnapshotMeta>, closing: Closing) -> SnapshotFile {
        let dir = Rc::new(dir.to_owned());
        SnapshotFile {
            dir,
            current: Rc::new(RefCell::new(current)),
            busy: Rc::default(),
            closing,
        }
    }

    /// What the snapshot on disk covers.
    pub fn meta(&self) -> Option<SnapshotMeta> {
        self.current.borrow().clone()
    }

    /// Makes a snapshot durable, unless one that covers as much is there already. On an error the old one stays.
    pub async fn save(&self, meta: &SnapshotMeta, data: &[u8]) -> Result<(), StoreError> {
        let (path, unfinished) = (self.dir.join("snapshot"), self.dir.join("snapshot.tmp"));
        let bytes = data.len() as u64;
        if bytes > MAX_SNAPSHOT_BYTES {
            return Err(StoreError::TooLarge {
                path,
                what: "a snapshot",
                bytes,
                max: MAX_SNAPSHOT_BYTES,
            });
        }
        let _alone = self.busy.lock().await;
        if self
            .current
            .borrow()
            .as_ref()
            .is_some_and(|current| current.last_log_id >= meta.last_log_id)
        {
            return Ok(());
        }
        let json = serde_json::to_vec(meta).expect("plain data serialises");
        let header = Header {
            meta_len: json.len() as u32,
            meta_crc: crc32c::crc32c(&json),
            data_len: bytes,
            data_crc: crc32c::crc32c(data),
        };
        let head = [&header.encode()[..], &json].concat();
        wait_for_room(&self.closing, async || {
            write_file(&unfinished, &head, data).await
        })
        .await?;
        glommio::io::rename(&unfinished, &path)
            .await
            .map_err(StoreError::io(&path, "rename"))?;
        sync_dir(&self.dir).await?;
        *self.current.borrow_mut() = Some(meta.clone());
        Ok(())
    }

    /// Reads and checks the snapshot on disk.
    pub async fn load(&self) -> Result<Option<Snapshot>, StoreError> {
        let _alone = self.busy.lock().await;
        if self.current.borrow().is_none() {
            return Ok(None);
        }
        let path = self.dir.join("snapshot");
        let file = OpenOptions::new().read(true).buffered_open(&path).await;
        let file = file.map_err(StoreError::io(&path, "open"))?;
        let size = file
            .file_size()
            .await
            .map_err(StoreError::io(&path, "measure"))?;
        let mut bytes = Vec::with_capacity(size as usize);
        while (bytes.len() as u64) < size {
            let piece = file
                .read_at(bytes.len() as u64, PIECE_BYTES)
                .await
                .map_err(StoreError::io(&path, "read"))?;
            if piece.is_empty() {
                break;
            }
            bytes.extend_from_slice(&piece);
        }
        file.close().await.map_err(StoreError::io(&path, "close"))?;
        decode(&path, &bytes).map(Some)
    }
}
