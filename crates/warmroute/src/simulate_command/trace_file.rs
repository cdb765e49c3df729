//! Source of a trace: a file, plain or compressed with zstd, or a generated workload.

use std::{path::PathBuf, str::FromStr};

use kv_blocks::BlockSize;
use simulate::{Synthetic, SyntheticError};

use crate::text_file;

/// Prefix of the name of a generated workload.
const SYNTHETIC: &str = "synthetic:";

/// Source of a trace.
#[derive(Clone, Debug)]
pub(super) enum TraceSource {
    /// A file.
    File(PathBuf),
    /// A generated workload, with its name as given.
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
    /// Returns the trace as JSON lines; a generated one has ids for blocks of this size, and names its
    /// sessions if it has to. An error message if there is none.
    pub(super) fn text(&self, block_size: BlockSize, sessions: bool) -> Result<String, String> {
        let generated = |synthetic: &Synthetic| {
            if sessions {
                synthetic.text_with_sessions(block_size)
            } else {
                synthetic.text(block_size)
            }
        };
        match self {
            Self::File(path) => text_file::read(path).map_err(|error| error.to_string()),
            Self::Synthetic(_, synthetic) => {
                generated(synthetic).map_err(|error| error.to_string())
            }
        }
    }
}
