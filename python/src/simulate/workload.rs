//! Source of a trace: a file, or a generated workload.

use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
};

use kv_blocks::BlockSize;
use pyo3::{exceptions::PyValueError, prelude::*};
use simulate::{MOST_TEXT_BYTES, Synthetic, text_of};

use super::experiments::SimulationError;

/// Prefix of the name of a generated workload.
const SYNTHETIC: &str = "synthetic:";

/// Source of a trace.
#[derive(Clone, Debug)]
pub(super) enum Workload {
    /// A file.
    File(PathBuf),
    /// A generated workload, with its name as given.
    Synthetic(String, Synthetic),
}

impl Workload {
    /// Reads the argument `trace`: a path, or the name of a workload.
    pub(super) fn of(trace: &Bound<'_, PyAny>) -> PyResult<Self> {
        let path: PathBuf = trace.extract()?;
        let Some(name) = path.to_str().filter(|text| text.starts_with(SYNTHETIC)) else {
            return Ok(Self::File(path));
        };
        let synthetic = name[SYNTHETIC.len()..].parse::<Synthetic>();
        let synthetic =
            synthetic.map_err(|error| PyValueError::new_err(format!("trace {name}: {error}")))?;
        Ok(Self::Synthetic(name.to_owned(), synthetic))
    }

    /// Returns its name in reports.
    pub(super) fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Synthetic(name, _) => name.clone(),
        }
    }

    /// Returns the trace as JSON lines; a generated one has ids for blocks of this size, and names its
    /// sessions if it has to.
    pub(super) fn text(
        &self,
        block_size: BlockSize,
        sessions: bool,
    ) -> Result<String, SimulationError> {
        let unusable = |problem: String| {
            SimulationError::Unusable(format!("trace {}: {problem}", self.name()))
        };
        match self {
            Self::File(path) => {
                let mut bytes = Vec::new();
                File::open(path)
                    .and_then(|file| file.take(MOST_TEXT_BYTES + 1).read_to_end(&mut bytes))
                    .map_err(|error| {
                        let named = format!("trace {} cannot be read: {error}", path.display());
                        SimulationError::Unreadable(io::Error::new(error.kind(), named))
                    })?;
                text_of(bytes).map_err(|error| unusable(error.to_string()))
            }
            Self::Synthetic(_, synthetic) if sessions => synthetic
                .text_with_sessions(block_size)
                .map_err(|error| unusable(error.to_string())),
            Self::Synthetic(_, synthetic) => synthetic
                .text(block_size)
                .map_err(|error| unusable(error.to_string())),
        }
    }
}
