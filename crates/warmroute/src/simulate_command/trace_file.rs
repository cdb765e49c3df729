//! Where a trace comes from: a file, plain or compressed with zstd, or nowhere.

use std::{path::PathBuf, str::FromStr};

use kv_blocks::BlockSize;
use simulate::{Synthetic, SyntheticError};

use crate::text_file;

/// What the name of a workload that is made up begins with.
const SYNTHETIC: &str = "synthetic:";

/// Where a trace comes from.
#[derive(Clone, Debug)]
pub(super) enum TraceSource {
    /// A file.
    File(PathBuf),
    /// It is made up; the name as it was given.
    Synthetic(String, Synthetic),
}

impl FromStr for TraceSource {
    type Err = SyntheticError;

    fn from_str(text: &str) -> Result<Self, SyntheticError> {
        match text.strip_prefix(SYNTHETIC) {
            Some(name) => Ok(Self::Synthetic(text.to_owned(), name.parse()?)),
            None => Ok(Self::File(text.into())),
        }
    }
}

impl std::fmt::Display for TraceSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Synthetic(name, _) => f.write_str(name),
        }
    }
}

impl TraceSource {
    /// The trace as JSON lines, with ids for blocks of this size where it is made up; a message if there is none.
    pub(super) fn text(&self, block_size: BlockSize) -> Result<String, String> {
        match self {
            Self::File(path) => text_file::read(path).map_err(|error| error.to_string()),
            Self::Synthetic(_, synthetic) => synthetic
                .text(block_size)
                .map_err(|error| error.to_string()),
        }
    }
}
