//! The figures, for people and for programs.

mod json;
mod markdown;
mod table;

use crate::{figures::WorkloadFigures, index::Implementation, machine::RunEnvironment};

pub(crate) use json::json;
pub(crate) use markdown::{markdown, write_into};

/// Everything a report is made of.
#[derive(Debug)]
pub(crate) struct BenchmarkResults {
    pub(crate) run: RunEnvironment,
    /// The indexes, in the order they were named.
    pub(crate) contenders: Vec<Implementation>,
    pub(crate) workloads: Vec<WorkloadFigures>,
}

impl BenchmarkResults {
    /// Those that ours is compared with; ratios refer to the first above all.
    fn peers(&self) -> impl Iterator<Item = Implementation> + '_ {
        self.contenders
            .iter()
            .copied()
            .filter(|contender| *contender != Implementation::Ours)
    }
}
