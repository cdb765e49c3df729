//! The command line.

use std::{path::PathBuf, str::FromStr};

use clap::Parser;

use crate::{
    index::Implementation,
    phases::Cores,
    workload::{Recipe, Size, WorkloadError},
};

/// Measures this project's block index beside its peers.
#[derive(Clone, Debug, Parser)]
#[command(name = "index-bench", version)]
pub(crate) struct Options {
    /// Print JSON instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Folder with the traces, plain or compressed with zstd; without it what needs one is left out
    #[arg(long, value_name = "DIR")]
    pub(crate) traces: Option<PathBuf>,
    /// Only these workloads
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    workloads: Vec<Recipe>,
    /// Repetitions, of which the median counts
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    reps: Option<u32>,
    /// Indexes to compare: the first that is not `ours` is the peer that ratios refer to
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    index: Vec<Implementation>,
    /// A quarter of each workload, one repetition: for a first look
    #[arg(long)]
    pub(crate) quick: bool,
    /// Measure nothing; hold every answer of every query against the oracle (of `ours` unless
    /// others are named)
    #[arg(long)]
    pub(crate) check_all: bool,
    /// Repeat one phase of one workload with one index, to look at it with a profiler
    #[arg(long, value_name = "WORKLOAD:PHASE")]
    pub(crate) profile: Option<ProfileTarget>,
    /// How long `--profile` goes on
    #[arg(long, default_value_t = 10, value_name = "N")]
    pub(crate) seconds: u64,
    /// Also write the tables into this file, between its two marks if it has them
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,
    /// The two cores to run on; the first does alone what needs one
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,1",
        value_parser = clap::value_parser!(u16).range(..1024),
        value_name = "A,B"
    )]
    cores: Vec<u16>,
    /// Print the memory of one index after one workload: this program asks itself that in a process
    /// of its own
    #[arg(long, hide = true)]
    pub(crate) memory_of: Option<Recipe>,
}

/// One phase of one workload.
#[derive(Clone, Debug)]
pub(crate) struct ProfileTarget {
    pub(crate) workload: Recipe,
    pub(crate) phase: ProfiledPhase,
}

/// The phases that can be repeated for a profiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ProfiledPhase {
    Events,
    Query,
    Hot,
    Pairs,
    Batch,
    WithWriter,
}

/// An invalid profile.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProfileError {
    #[error("{0:?} is no profile: expected WORKLOAD:PHASE, for example synthetic_8192:query")]
    Shape(String),
    #[error("phase {0:?} is unknown: expected events, query, hot, pairs, batch or with-writer")]
    Phase(String),
    #[error(transparent)]
    Workload(#[from] WorkloadError),
}

impl FromStr for ProfileTarget {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let (workload, phase) = text
            .split_once(':')
            .ok_or_else(|| ProfileError::Shape(text.into()))?;
        let phase = clap::ValueEnum::from_str(phase, false)
            .map_err(|_| ProfileError::Phase(phase.into()))?;
        Ok(Self {
            workload: Recipe::from_str(workload)?,
            phase,
        })
    }
}

impl Options {
    /// Returns the workloads to run: the named ones, or all.
    pub(crate) fn workloads(&self) -> Vec<Recipe> {
        if self.workloads.is_empty() {
            Recipe::all().to_vec()
        } else {
            self.workloads.clone()
        }
    }

    /// Whether the command line names the workload.
    pub(crate) fn names(&self, workload: &Recipe) -> bool {
        self.workloads
            .iter()
            .any(|named| named.name == workload.name)
    }

    /// Returns the indexes to run: the named ones, or the default ones.
    pub(crate) fn contenders(&self) -> Vec<Implementation> {
        match self.index.as_slice() {
            [] if self.check_all || self.profile.is_some() => vec![Implementation::Ours],
            [] => Implementation::DEFAULT.to_vec(),
            named => named.to_vec(),
        }
    }

    pub(crate) fn size(&self) -> Size {
        if self.quick { Size::Quick } else { Size::Full }
    }

    pub(crate) fn reps(&self) -> u32 {
        self.reps.unwrap_or(if self.quick { 1 } else { 3 })
    }

    pub(crate) fn cores(&self) -> Cores {
        let core = |at: usize| {
            self.cores
                .get(at)
                .or(self.cores.first())
                .map_or(0, |core| usize::from(*core))
        };
        [core(0), core(1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_names_a_workload_and_a_phase() {
        let profile: ProfileTarget = "synthetic_512:with-writer".parse().unwrap();
        assert_eq!(
            (profile.workload.name, profile.phase),
            ("synthetic_512", ProfiledPhase::WithWriter)
        );
        for wrong in ["synthetic_512", "synthetic_512:walk", "synthetic_7:query"] {
            assert!(wrong.parse::<ProfileTarget>().is_err(), "{wrong}");
        }
    }
}
