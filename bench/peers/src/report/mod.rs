//! The figures, for people and for programs.

mod json;
mod markdown;
mod table;

use crate::{figures::WorkloadFigures, index::Implementation, machine::RunEnvironment};

pub(crate) use json::json;
pub(crate) use markdown::{markdown, write_into};

/// The content of a report.
#[derive(Debug)]
pub(crate) struct BenchmarkResults {
    pub(crate) run: RunEnvironment,
    /// The indexes, in the order of the command line.
    pub(crate) contenders: Vec<Implementation>,
    pub(crate) workloads: Vec<WorkloadFigures>,
}

impl BenchmarkResults {
    /// The peers of ours; the main ratios refer to the first.
    fn peers(&self) -> impl Iterator<Item = Implementation> + '_ {
        self.contenders
            .iter()
            .copied()
            .filter(|contender| *contender != Implementation::Ours)
    }
}
