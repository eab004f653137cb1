//! What a source told in a move, kept durably until the move is over (rule R12).
//!
//! What this file keeps true: two slots take turns, so a torn write leaves the former content; a
//! slot is overwritten in place, so that saving costs one small sync and no journal entry; what
//! cannot be read, or belongs to another move, counts as nothing told, which only makes a
//! promotion wait.

use super::limits::TOLD_FILE_MAX_BYTES;
use narad_core::ids::{MoveId, PartitionKey};
use narad_core::moves::target::Told;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Slots are padded to this, so that most of them never grow.
const SLOT_BYTES: usize = 4_096;

fn dir(root: &Path) -> PathBuf {
    root.join("moves")
}

fn path(root: &Path, key: PartitionKey, move_id: MoveId, slot: u64) -> PathBuf {
    dir(root).join(format!(
        "t{}-p{}-m{move_id}.{slot}",
        key.topic, key.partition
    ))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    glommio::executor().spawn_blocking(work).await
}

/// FNV-1a, to tell a torn slot.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn encode(generation: u64, told: &Told) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(&(generation, told)).map_err(io::Error::other)?;
    let mut bytes = format!("{:016x} {:016x} ", json.len(), checksum(&json)).into_bytes();
    bytes.extend_from_slice(&json);
    let padded = bytes.len().next_multiple_of(SLOT_BYTES);
    bytes.resize(padded, b' ');
    Ok(bytes)
}

fn decode(bytes: &[u8]) -> Option<(u64, Told)> {
    let number = |at: usize| {
        let text = std::str::from_utf8(bytes.get(at..at + 16)?).ok()?;
        u64::from_str_radix(text, 16).ok()
    };
    let len = usize::try_from(number(0)?).ok()?;
    let json = bytes.get(34..)?.get(..len)?;
    if number(17)? != checksum(json) {
        return None;
    }
    serde_json::from_slice(json).ok()
}

fn read(path: &Path) -> Option<(u64, Told)> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(TOLD_FILE_MAX_BYTES)
        .read_to_end(&mut bytes)
        .ok()?;
    decode(&bytes)
}

/// What was saved in one move, and where the next save goes.
#[derive(Clone, Debug, Default)]
pub(super) struct Saved {
    generation: u64,
    pub(super) told: Option<Told>,
}

impl Saved {
    /// The same without what was told; later slots still count as newer than one that could not be
    /// removed.
    pub(super) fn forgotten(&self) -> Self {
        Self {
            generation: self.generation,
            told: None,
        }
    }
}

/// What was saved in this move.
pub(super) async fn load(root: &Path, key: PartitionKey, move_id: MoveId) -> Saved {
    let slots = [0, 1].map(|slot| path(root, key, move_id, slot));
    blocking(move || {
        let newest = slots
            .iter()
            .filter_map(|slot| read(slot))
            .filter(|(_, told)| told.move_id == move_id)
            .max_by_key(|(generation, _)| *generation);
        newest.map_or_else(Saved::default, |(generation, told)| Saved {
            generation,
            told: Some(told),
        })
    })
    .await
}

/// Saves durably, in the slot that does not hold the newest.
///
/// # Errors
/// The disk's; the former content stands then.
pub(super) async fn save(
    root: &Path,
    key: PartitionKey,
    saved: &Saved,
    told: Told,
) -> io::Result<Saved> {
    let generation = saved.generation + 1;
    let path = path(root, key, told.move_id, generation % 2);
    let bytes = encode(generation, &told)?;
    let dir = dir(root);
    blocking(move || {
        let existed = path.exists();
        if !existed {
            fs::create_dir_all(&dir)?;
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)?;
        file.write_all(&bytes)?;
        file.sync_data()?;
        if !existed {
            File::open(&dir)?.sync_all()?;
        }
        Ok(())
    })
    .await
    .map(|()| Saved {
        generation,
        told: Some(told),
    })
}

/// Forgets durably what was told in a move, because the staged copy is not what was told of, or because
/// the move is over.
///
/// # Errors
/// The disk's; it may be found again by a start.
pub(super) async fn forget(root: &Path, key: PartitionKey, move_id: MoveId) -> io::Result<()> {
    let slots = [0, 1].map(|slot| path(root, key, move_id, slot));
    let dir = dir(root);
    blocking(move || {
        let mut removed = false;
        for slot in slots {
            match fs::remove_file(slot) {
                Ok(()) => removed = true,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        if removed {
            File::open(&dir)?.sync_all()?;
        }
        Ok(())
    })
    .await
}

/// Forgets every file of a move that is not among these.
pub(super) async fn forget_others(root: &Path, running: Vec<(PartitionKey, MoveId)>) {
    let keep: Vec<PathBuf> = running
        .into_iter()
        .flat_map(|(key, id)| [0, 1].map(|slot| path(root, key, id, slot)))
        .collect();
    let dir = dir(root);
    blocking(move || {
        let Ok(entries) = fs::read_dir(dir) else {
            return;
        };
        for entry in entries.flatten() {
            if !keep.contains(&entry.path()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use narad_core::copy::Manifest;
    use narad_core::ids::{Offset, Origin, WalId, WalSeq};

    fn told(hwm: u64, marks: u64) -> Told {
        Told {
            move_id: MoveId(7),
            manifest: Manifest {
                hwm: Offset(hwm),
                marks: (0..marks)
                    .map(|n| Origin {
                        wal: WalId(n),
                        seq: WalSeq(n),
                    })
                    .collect(),
                ..Manifest::default()
            },
        }
    }

    #[test]
    fn a_slot_reads_back_also_over_a_longer_former_one() {
        let long = encode(1, &told(5, 500)).expect("encodes");
        assert!(long.len() > SLOT_BYTES);
        assert_eq!(decode(&long), Some((1, told(5, 500))));
        let short = encode(3, &told(9, 0)).expect("encodes");
        let mut over = long;
        over[..short.len()].copy_from_slice(&short);
        assert_eq!(decode(&over), Some((3, told(9, 0))));
    }

    #[test]
    fn what_was_forgotten_is_gone_and_later_answers_are_newer_than_it() {
        let root = std::env::temp_dir().join(format!("narad-told-{}", std::process::id()));
        let key = PartitionKey {
            topic: narad_core::ids::TopicId(1),
            partition: narad_core::ids::PartitionIndex(0),
        };
        let base = root.clone();
        let executor = glommio::LocalExecutorBuilder::default().make();
        executor.expect("io_uring").run(async move {
            let mut saved = Saved::default();
            for hwm in [100, 120] {
                saved = save(&base, key, &saved, told(hwm, 0)).await.expect("saves");
            }
            let stale = path(&base, key, MoveId(7), 0);
            let bytes = fs::read(&stale).expect("the slot of the second");
            forget(&base, key, MoveId(7)).await.expect("forgets");
            forget(&base, key, MoveId(7)).await.expect("once more");
            assert_eq!(load(&base, key, MoveId(7)).await.told, None);
            // Should a slot come back, what is told later still stands above it.
            fs::write(&stale, bytes).expect("writes");
            let forgotten = saved.forgotten();
            save(&base, key, &forgotten, told(90, 0))
                .await
                .expect("saves");
            assert_eq!(load(&base, key, MoveId(7)).await.told, Some(told(90, 0)));
        });
        fs::remove_dir_all(root).expect("removes");
    }

    #[test]
    fn a_torn_slot_counts_as_nothing() {
        let old = encode(1, &told(5, 500)).expect("encodes");
        let new = encode(3, &told(6, 501)).expect("encodes");
        for torn in [1, 40, 512, 4_096, new.len() - SLOT_BYTES] {
            let mut bytes = old.clone();
            bytes.resize(new.len(), 0);
            bytes[..torn].copy_from_slice(&new[..torn]);
            let read = decode(&bytes);
            assert!(
                read.is_none() || read == Some((1, told(5, 500))),
                "torn at {torn}"
            );
        }
        assert_eq!(decode(b""), None);
        assert_eq!(decode(&[b'f'; 64]), None);
    }
}
