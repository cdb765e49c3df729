//! The index snapshot: the confirmed content of an index as a file, and the checks when it is read.
//!
//! A snapshot is a sequence of records in checksummed pages; `docs/snapshot-format.md` has the
//! layout. This module has the codec and all checks. Not here: files, times, and the index itself,
//! which fills the records and loads them.
//!
//! A snapshot contains cache salts in clear, because namespaces cannot be rebuilt without them, and
//! salts are secrets: the caller must make the file readable by its owner only (mode 0600).
//!
//! **Invariant**: no part of a snapshot is returned before all of it was read, its checksums
//! compared and its records checked against each other. A consumer of [`SnapshotContent`] checks
//! none of that again.
//! **Invariant**: no length or number in a snapshot leads to an allocation before the bytes it
//! describes were read.

mod content;
mod cursor;
mod error;
mod page;
mod read;
mod records;
mod write;

#[cfg(test)]
mod tests;

pub use error::SnapshotError;
pub(crate) use {
    content::SnapshotContent,
    read::read,
    records::{
        CopyRecord, HolderRecord, MAX_RUN_BLOCKS, MemberRecord, NameStretch, NamespaceRecord,
        ParentLink, PositionRecord, RecordCounts, RunRecord, TargetRecord,
    },
    write::SnapshotWriter,
};
