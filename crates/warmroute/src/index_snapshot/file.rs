//! The snapshot file: a head with the names of the workers, and behind it the index's own snapshot.
//! `docs/snapshot-format.md` has the layout.
//!
//! **Invariant**: the file at the path is whole at any time. A new one is written beside it,
//! synchronised and renamed.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, BufReader, BufWriter, Read, Seek, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use fleet::NumberedWorker;
use kv_blocks::WorkerId;
use kv_index::{KvIndex, LoadSummary, SaveSummary, SnapshotError};
use routing::LearnedState;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"warmrout";
/// Version of the head; it changes with any change of the head's layout.
const VERSION: u32 = 2;
/// Most bytes of a head: 65,536 keys of sessions take up to 12 MiB, a worker 4 KiB.
const MOST_HEAD: u32 = 64 << 20;
/// Bytes that are written at a time.
const BUFFER: usize = 1 << 20;

/// The head of a snapshot file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SnapshotHead {
    /// When the content was saved, Unix milliseconds.
    pub(super) saved_at_ms: u64,
    /// The workers whose numbers the index uses.
    workers: Vec<SavedWorker>,
    /// What the router has learned of them.
    learned: LearnedState,
}

#[derive(Debug, Serialize, Deserialize)]
struct SavedWorker {
    id: u32,
    name: String,
    url: String,
}

impl SnapshotHead {
    pub(super) fn new(saved_at_ms: u64, workers: &[NumberedWorker], learned: LearnedState) -> Self {
        let saved = |worker: &NumberedWorker| SavedWorker {
            id: worker.id.0,
            name: worker.name.to_string(),
            url: worker.url.clone(),
        };
        Self {
            saved_at_ms,
            workers: workers.iter().map(saved).collect(),
            learned,
        }
    }

    /// Returns the workers, and what was learned of them.
    pub(super) fn into_parts(self) -> (Vec<NumberedWorker>, LearnedState) {
        let numbered = |worker: SavedWorker| NumberedWorker {
            id: WorkerId(worker.id),
            name: worker.name.into(),
            url: worker.url,
        };
        (
            self.workers.into_iter().map(numbered).collect(),
            self.learned,
        )
    }
}

/// Why a snapshot file was not loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RejectedSnapshot {
    #[error(
        "it begins with {found:02x?}, expected {MAGIC:02x?}: this is another kind of file, name the right one"
    )]
    NotASnapshot { found: [u8; 8] },
    #[error(
        "it has format version {found}, expected {VERSION}: another release wrote it, and the next save replaces it"
    )]
    Version { found: u32 },
    #[error("its head is damaged: {0}; delete the file")]
    Head(String),
    #[error("it ends within its head: it was not written to its end, delete the file")]
    Truncated,
    #[error(transparent)]
    Index(#[from] SnapshotError),
    #[error("it cannot be read: {0}")]
    Io(io::Error),
}

impl RejectedSnapshot {
    /// The reasons in the counter.
    pub(super) const REASONS: [&'static str; 8] = [
        "not_a_snapshot",
        "version",
        "scheme",
        "damaged",
        "truncated",
        "too_large",
        "not_empty",
        "unreadable",
    ];

    /// Returns the reason in the counter.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::NotASnapshot { .. } | Self::Index(SnapshotError::NotASnapshot { .. }) => {
                "not_a_snapshot"
            }
            Self::Version { .. } | Self::Index(SnapshotError::Version { .. }) => "version",
            Self::Index(SnapshotError::Scheme { .. }) => "scheme",
            Self::Head(_) | Self::Index(SnapshotError::Damaged { .. }) => "damaged",
            Self::Truncated | Self::Index(SnapshotError::Truncated { .. }) => "truncated",
            Self::Index(SnapshotError::TooLarge { .. }) => "too_large",
            Self::Index(SnapshotError::NotEmpty { .. }) => "not_empty",
            Self::Io(_) | Self::Index(SnapshotError::Io(_)) => "unreadable",
        }
    }
}

impl From<io::Error> for RejectedSnapshot {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Truncated,
            _ => Self::Io(error),
        }
    }
}

/// Loads a file into an empty index; `None` if there is none.
pub(super) fn load(
    path: &Path,
    index: &KvIndex,
) -> Result<Option<(SnapshotHead, LoadSummary)>, RejectedSnapshot> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(RejectedSnapshot::Io(error)),
    };
    read(&mut BufReader::with_capacity(BUFFER, file), index).map(Some)
}

/// Loads a snapshot into an empty index.
pub(super) fn read(
    from: &mut dyn Read,
    index: &KvIndex,
) -> Result<(SnapshotHead, LoadSummary), RejectedSnapshot> {
    let head = read_head(from)?;
    let summary = index.restore(from)?;
    Ok((head, summary))
}

fn read_head(file: &mut dyn Read) -> Result<SnapshotHead, RejectedSnapshot> {
    let found: [u8; 8] = take(file)?;
    if found != MAGIC {
        return Err(RejectedSnapshot::NotASnapshot { found });
    }
    let found = u32::from_le_bytes(take(file)?);
    if found != VERSION {
        return Err(RejectedSnapshot::Version { found });
    }
    let length = u32::from_le_bytes(take(file)?);
    let checksum = u64::from_le_bytes(take(file)?);
    if length > MOST_HEAD {
        return Err(RejectedSnapshot::Head(format!(
            "{length} bytes, expected at most {MOST_HEAD}"
        )));
    }
    // Grows with what is read, whatever the length says.
    let mut text = Vec::new();
    file.take(u64::from(length)).read_to_end(&mut text)?;
    if text.len() < length as usize {
        return Err(RejectedSnapshot::Truncated);
    }
    if xxh3_64(&text) != checksum {
        return Err(RejectedSnapshot::Head(
            "its checksum does not match".to_owned(),
        ));
    }
    serde_json::from_slice(&text).map_err(|error| RejectedSnapshot::Head(error.to_string()))
}

fn take<const N: usize>(file: &mut dyn Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Replaces the file by the content of the index. It holds salts in clear: other users must not
/// read it. Returns the bytes of the file.
pub(super) fn save(path: &Path, head: &SnapshotHead, index: &KvIndex) -> io::Result<SavedFile> {
    let beside = beside(path);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&beside)?;
    // Of two processes during a take-over, one saves.
    file.try_lock().map_err(|_| {
        io::Error::other(format!(
            "another process is writing {}: each router needs a file of its own",
            beside.display()
        ))
    })?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    let mut out = BufWriter::with_capacity(BUFFER, file);
    let summary = write(&mut out, head, index)?;
    let mut file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    let bytes = file.stream_position()?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The new name itself must survive a crash of the machine.
    File::open(folder(path))?.sync_all()?;
    Ok(SavedFile { summary, bytes })
}

/// Writes the content of the index.
pub(super) fn write(
    out: &mut dyn Write,
    head: &SnapshotHead,
    index: &KvIndex,
) -> io::Result<SaveSummary> {
    write_head(out, head)?;
    index.save_in_pieces(
        out,
        KvIndex::ITEMS_PER_HOLD,
        // A decision that waits for the lock gets it first.
        &mut std::thread::yield_now,
    )
}

/// A written file.
#[derive(Clone, Copy, Debug)]
pub(super) struct SavedFile {
    pub(super) summary: SaveSummary,
    pub(super) bytes: u64,
}

fn write_head(out: &mut dyn Write, head: &SnapshotHead) -> io::Result<()> {
    let text = serde_json::to_vec(head).map_err(io::Error::other)?;
    let length = u32::try_from(text.len())
        .ok()
        .filter(|length| *length <= MOST_HEAD)
        .ok_or_else(|| io::Error::other("there are too many workers for the head of a snapshot"))?;
    out.write_all(&MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(&xxh3_64(&text).to_le_bytes())?;
    out.write_all(&text)
}

/// Returns the path of the file while it is being written.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests;
