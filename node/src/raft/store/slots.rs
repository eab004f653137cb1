//! Small values that are replaced as a whole (vote, purge mark, commit mark, identity): one file of two slots each.
//!
//! Keeps true: a synced save is in both slots when it returns, so one damaged slot loses nothing; a crash in the middle of a
//! save leaves the value before or the value after it. An unsynced save alternates between the slots and is a hint only.

use super::error::StoreError;
use glommio::io::{BufferedFile, OpenOptions};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"NRDRAFTS";
const VERSION: u32 = 1;
/// Bytes of one slot: a block, so that writing one never touches the other.
const SLOT_BYTES: usize = 4096;
const HEADER_BYTES: usize = 32;
/// Longest value, as JSON.
pub(super) const MAX_VALUE_BYTES: usize = SLOT_BYTES - HEADER_BYTES;

/// A value found in a slot file.
pub(super) struct Slot<T> {
    /// Number of its save.
    pub(super) sequence: u64,
    /// The value.
    pub(super) value: T,
}

enum Found {
    Nothing,
    Damaged(&'static str),
    Value(u64, Vec<u8>),
}

fn encode(sequence: u64, json: &[u8]) -> Vec<u8> {
    let mut out = vec![0; SLOT_BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[16..24].copy_from_slice(&sequence.to_le_bytes());
    out[24..28].copy_from_slice(&(json.len() as u32).to_le_bytes());
    out[HEADER_BYTES..HEADER_BYTES + json.len()].copy_from_slice(json);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out[..12]), &out[16..]);
    out[12..16].copy_from_slice(&crc.to_le_bytes());
    out
}

fn decode(path: &Path, slot: &[u8]) -> Result<Found, StoreError> {
    if slot.iter().all(|byte| *byte == 0) {
        return Ok(Found::Nothing);
    }
    if slot.len() < SLOT_BYTES || slot[..8] != MAGIC {
        return Ok(Found::Damaged("no slot magic"));
    }
    let word = |at: usize| u32::from_le_bytes(slot[at..at + 4].try_into().expect("four bytes"));
    if word(8) > VERSION {
        return Err(StoreError::NewerFormat {
            path: path.to_owned(),
            found: word(8),
            supported: VERSION,
        });
    }
    let len = word(24) as usize;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&slot[..12]), &slot[16..]);
    if crc != word(12) || len > MAX_VALUE_BYTES {
        return Ok(Found::Damaged("the slot's checksum is wrong"));
    }
    let sequence = u64::from_le_bytes(slot[16..24].try_into().expect("eight bytes"));
    Ok(Found::Value(
        sequence,
        slot[HEADER_BYTES..HEADER_BYTES + len].to_vec(),
    ))
}

/// Reads a slot file with ordinary blocking I/O. `None`: it was never saved.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<Slot<T>>, StoreError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StoreError::io(path, "read")(error)),
    };
    let mut best: Option<(u64, Vec<u8>)> = None;
    let mut damage = None;
    let mut second_was_saved = false;
    for (number, slot) in bytes.chunks(SLOT_BYTES).take(2).enumerate() {
        match decode(path, slot)? {
            Found::Nothing => continue,
            Found::Damaged(what) => damage = Some((number, what)),
            Found::Value(sequence, json) => {
                if best.as_ref().is_none_or(|(known, _)| sequence > *known) {
                    best = Some((sequence, json));
                }
            }
        }
        second_was_saved |= number == 1;
    }
    match (best, damage) {
        (Some((sequence, json)), damage) => {
            if let Some((number, what)) = damage {
                tracing::warn!(file = %path.display(), slot = number, what, "one of two slots is damaged, the other one is used");
            }
            let value = serde_json::from_slice(&json).map_err(|error| {
                StoreError::corrupt(path, 0, format!("the saved value does not parse: {error}"))
            })?;
            Ok(Some(Slot { sequence, value }))
        }
        // The very first save was cut short in its first slot: it never returned.
        (None, Some((0, _))) if !second_was_saved => Ok(None),
        (None, Some((number, what))) => Err(StoreError::corrupt(
            path,
            (number * SLOT_BYTES) as u64,
            what,
        )),
        (None, None) => Ok(None),
    }
}

/// Writes both slots with ordinary blocking I/O and syncs file and directory.
pub(super) fn write_blocking<T: Serialize>(
    path: &Path,
    sequence: u64,
    value: &T,
) -> Result<(), StoreError> {
    use std::os::unix::fs::FileExt;
    let slot = encode(sequence, &to_json(path, value)?);
    let options = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    let file = options.map_err(StoreError::io(path, "open"))?;
    for number in 0..2 {
        file.write_all_at(&slot, number * SLOT_BYTES as u64)
            .map_err(StoreError::io(path, "write"))?;
        file.sync_all().map_err(StoreError::io(path, "sync"))?;
    }
    super::recover::sync_parent(path)
}

fn to_json<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>, StoreError> {
    let json = serde_json::to_vec(value).expect("plain data serialises");
    if json.len() > MAX_VALUE_BYTES {
        let (bytes, max) = (json.len() as u64, MAX_VALUE_BYTES as u64);
        return Err(StoreError::TooLarge {
            path: path.to_owned(),
            what: "the value to save",
            bytes,
            max,
        });
    }
    Ok(json)
}

/// A slot file that is open for saving.
pub(super) struct SlotFile {
    path: PathBuf,
    file: BufferedFile,
    sequence: u64,
}

impl SlotFile {
    /// Opens the file, creating it with its directory entry synced. `sequence` is the one last read.
    pub(super) async fn open(path: &Path, sequence: u64) -> Result<SlotFile, StoreError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .buffered_open(path)
            .await;
        let file = file.map_err(StoreError::io(path, "open"))?;
        // Room for both slots from the start, so that a vote can be saved on a full disk.
        file.pre_allocate(2 * SLOT_BYTES as u64, false)
            .await
            .map_err(StoreError::io(path, "allocate"))?;
        super::files::sync_dir(path.parent().expect("a file in a directory")).await?;
        Ok(SlotFile {
            path: path.to_owned(),
            file,
            sequence,
        })
    }

    /// Saves into both slots, each synced. Not cancel-safe in the sense that the outcome is then unknown.
    pub(super) async fn save_synced<T: Serialize>(&mut self, value: &T) -> Result<(), StoreError> {
        let json = to_json(&self.path, value)?;
        self.sequence += 1;
        for slot in 0..2 {
            self.write(slot, &json).await?;
            self.file
                .fdatasync()
                .await
                .map_err(StoreError::io(&self.path, "sync"))?;
        }
        Ok(())
    }

    /// Saves into one slot, without a sync: survives the process, perhaps not the machine.
    pub(super) async fn save_hint<T: Serialize>(&mut self, value: &T) -> Result<(), StoreError> {
        let json = to_json(&self.path, value)?;
        self.sequence += 1;
        self.write(self.sequence % 2, &json).await
    }

    async fn write(&self, slot: u64, json: &[u8]) -> Result<(), StoreError> {
        super::files::write_all(
            &self.file,
            &self.path,
            encode(self.sequence, json),
            slot * SLOT_BYTES as u64,
        )
        .await
    }
}
