//! Reasons to refuse a snapshot.

use std::io;

use kv_blocks::HashScheme;

/// Why a snapshot was not loaded. The index is unchanged: it has nothing of a refused snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file does not begin like a snapshot.
    #[error(
        "snapshot begins with {found:02x?}, expected {:02x?}: this is another kind of file, name the right one; \
         the index starts empty",
        super::page::MAGIC
    )]
    NotASnapshot {
        /// The first bytes.
        found: [u8; 8],
    },
    /// Another release wrote it.
    #[error(
        "snapshot has format version {found}, expected {expected}: another release wrote it, and the next save replaces \
         it; the index starts empty"
    )]
    Version {
        /// The version in the file.
        found: u32,
        /// The only version read here.
        expected: u32,
    },
    /// Its block hashes are of another scheme.
    #[error(
        "snapshot has block hashes of {}, expected {}: load it with the block_hash and block_hash_seed it was saved \
         with; the index starts empty",
        scheme_name(*.found),
        scheme_name(*.expected)
    )]
    Scheme {
        /// The scheme in the file.
        found: HashScheme,
        /// The index's scheme.
        expected: HashScheme,
    },
    /// A checksum does not match, or records contradict each other.
    #[error("snapshot is damaged at byte {at}: {what}; delete the file; the index starts empty")]
    Damaged {
        /// The found and the expected value.
        what: String,
        /// Offset in the file of the damage, or of the page around it.
        at: u64,
    },
    /// The file ends too early.
    #[error(
        "snapshot ends after {at} bytes, expected more: it was not written to its end, delete the file; the index starts \
         empty"
    )]
    Truncated {
        /// Number of bytes up to the end, or up to the incomplete page.
        at: u64,
    },
    /// The snapshot is larger than the limit.
    #[error(
        "snapshot has more than {limit} bytes, expected at most that: raise the memory budget; the index starts empty"
    )]
    TooLarge {
        /// Maximum bytes.
        limit: u64,
    },
    /// The index is not empty.
    #[error(
        "snapshot for an index of {blocks} blocks, expected none: load it before anything is stored; the index stays as it is"
    )]
    NotEmpty {
        /// Blocks in the index.
        blocks: u64,
    },
    /// The file cannot be read.
    #[error("snapshot cannot be read: {0}; the index starts empty")]
    Io(#[from] io::Error),
}

fn scheme_name(scheme: HashScheme) -> String {
    match scheme {
        HashScheme::Xxh3 { seed } => format!("xxh3 with seed {seed}"),
        HashScheme::Fnv1a => "fnv1a".to_owned(),
    }
}
