//! The file of a snapshot: a head with the names of the workers, and behind it the index's own
//! snapshot (`docs/snapshot-format.md`).
//!
//! The router's own files have another head, with URLs of workers and what was learned of them.
//!
//! **Invariant**: the file at the path is whole at any time. A new one is written beside it,
//! synchronised and renamed.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, BufReader, BufWriter, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use kv_index::{KvIndex, LoadSummary, SnapshotError};
use pyo3::PyErr;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::errors;

const MAGIC: [u8; 8] = *b"warmrtpy";
/// Version of the head; it changes with any change of the head's layout.
const VERSION: u32 = 1;
/// Most bytes of a head: 65,536 names in their longest JSON form take up to 100 MiB.
const MOST_HEAD: u32 = 128 << 20;
/// Bytes that are written at a time.
const BUFFER: usize = 1 << 20;

/// The head of a file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Head {
    /// Tokens per block.
    pub(super) block_size: u32,
    /// The workers whose numbers the index uses.
    pub(super) workers: Vec<SavedWorker>,
}

/// A worker of a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedWorker {
    pub(super) id: u32,
    pub(super) name: String,
}

/// Why a file was not loaded.
#[derive(Debug)]
pub(super) enum RestoreError {
    /// The index cannot take it.
    Conflict(String),
    /// It is damaged, or another kind of file.
    Unusable(String),
    /// It cannot be read.
    Io(io::Error),
}

impl From<io::Error> for RestoreError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Unusable(
                "the snapshot ends within its head: it was not written to its end, delete it"
                    .to_owned(),
            ),
            _ => Self::Io(error),
        }
    }
}

impl From<SnapshotError> for RestoreError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Io(error) => Self::Io(error),
            SnapshotError::NotEmpty { .. } => Self::Conflict(error.to_string()),
            other => Self::Unusable(other.to_string()),
        }
    }
}

impl From<RestoreError> for PyErr {
    fn from(error: RestoreError) -> Self {
        match error {
            RestoreError::Conflict(message) => errors::error("conflict", message),
            RestoreError::Unusable(message) => errors::error("invalid_request", message),
            RestoreError::Io(error) => error.into(),
        }
    }
}

/// Loads a file into an empty index of this block size.
pub(super) fn load(
    path: &Path,
    block_size: u32,
    index: &KvIndex,
) -> Result<(Head, LoadSummary), RestoreError> {
    let file = File::open(path).map_err(|error| RestoreError::Io(named(path, &error)))?;
    let mut file = BufReader::with_capacity(BUFFER, file);
    let head = read_head(&mut file)?;
    if head.block_size != block_size {
        return Err(RestoreError::Conflict(format!(
            "the snapshot has blocks of {} tokens, the index blocks of {block_size}: expected the same",
            head.block_size
        )));
    }
    let summary = index.load(&mut file)?;
    Ok((head, summary))
}

fn read_head(file: &mut dyn Read) -> Result<Head, RestoreError> {
    let found: [u8; 8] = take(file)?;
    if found != MAGIC {
        return Err(RestoreError::Unusable(format!(
            "the file begins with {found:02x?}, expected {MAGIC:02x?}: it is no snapshot of a KvIndex, name the right \
             one"
        )));
    }
    let version = u32::from_le_bytes(take(file)?);
    if version != VERSION {
        return Err(RestoreError::Unusable(format!(
            "the snapshot has format version {version}, expected {VERSION}: another release wrote it"
        )));
    }
    let length = u32::from_le_bytes(take(file)?);
    let checksum = u64::from_le_bytes(take(file)?);
    let damaged = |why: &str| {
        RestoreError::Unusable(format!(
            "the snapshot's head is damaged: {why}; delete the file"
        ))
    };
    if length > MOST_HEAD {
        return Err(damaged(&format!(
            "{length} bytes, expected at most {MOST_HEAD}"
        )));
    }
    // Grows with what is read, whatever the length says.
    let mut text = Vec::new();
    file.take(u64::from(length)).read_to_end(&mut text)?;
    if text.len() < length as usize || xxh3_64(&text) != checksum {
        return Err(damaged("its checksum does not match"));
    }
    serde_json::from_slice(&text).map_err(|error| damaged(&error.to_string()))
}

fn take<const N: usize>(file: &mut dyn Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Replaces the file by the content of the index.
pub(super) fn save(path: &Path, head: &Head, index: &KvIndex) -> io::Result<()> {
    write(path, head, index).map_err(|error| named(path, &error))
}

/// Returns an error of the same kind that names the file.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn write(path: &Path, head: &Head, index: &KvIndex) -> io::Result<()> {
    let beside = beside(path);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&beside)?;
    file.try_lock().map_err(|_| {
        io::Error::other(format!(
            "another snapshot is being written to {}: wait for its end",
            beside.display()
        ))
    })?;
    if !fs::metadata(&beside)
        .is_ok_and(|now| file.metadata().is_ok_and(|own| own.ino() == now.ino()))
    {
        return Err(io::Error::other(
            "another snapshot was completed meanwhile: write it again",
        ));
    }
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.set_len(0)?;
    let mut out = BufWriter::with_capacity(BUFFER, file);
    write_head(&mut out, head)?;
    index.save(&mut out)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The new name itself must survive a crash of the machine.
    File::open(folder(path))?.sync_all()
}

fn write_head(out: &mut dyn Write, head: &Head) -> io::Result<()> {
    let text = serde_json::to_vec(head).map_err(io::Error::other)?;
    let length = u32::try_from(text.len())
        .ok()
        .filter(|length| *length <= MOST_HEAD)
        .ok_or_else(|| io::Error::other("the workers have too long names for a snapshot"))?;
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
