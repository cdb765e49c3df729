//! The figures, for people and for programs.

mod json;
mod markdown;
mod table;

use crate::{figures::WorkloadFigures, index::Contender, machine::Run};

pub(crate) use json::json;
pub(crate) use markdown::{markdown, write_into};

/// Everything a report is made of.
#[derive(Debug)]
pub(crate) struct Results {
    pub(crate) run: Run,
    /// The indexes, in the order they were named.
    pub(crate) contenders: Vec<Contender>,
    pub(crate) workloads: Vec<WorkloadFigures>,
}

impl Results {
    /// Those that ours is compared with; ratios refer to the first above all.
    fn peers(&self) -> impl Iterator<Item = Contender> + '_ {
        self.contenders
            .iter()
            .copied()
            .filter(|contender| *contender != Contender::Ours)
    }
}
