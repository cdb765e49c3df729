//! The workloads by name.

use std::{path::Path, str::FromStr};

use super::{
    Workload,
    records::{self, TraceError},
    replay::{Placement, replay},
    synthetic, toolagent,
};

/// The part of a workload that is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Full,
    /// A quarter: for a first look and a smoke test.
    Quick,
}

/// The recipe of one workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe {
    pub(crate) name: &'static str,
    source: WorkloadSource,
    targets: usize,
}

#[derive(Clone, Copy, Debug)]
enum WorkloadSource {
    /// Chat, from a trace.
    Conversation(ReplayParameters),
    /// Tools and agents, from a trace if available, otherwise drawn.
    ToolAgent(ReplayParameters),
    /// Synthetic chains of this depth, in blocks.
    Synthetic(usize),
}

#[derive(Clone, Copy, Debug)]
struct ReplayParameters {
    /// Maximum number of blocks per target.
    capacity: usize,
    placement: Placement,
}

/// A workload that cannot be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkloadError {
    /// An unknown name.
    #[error("workload {name:?} is unknown: expected one of {}", Recipe::names())]
    Unknown { name: String },
    /// It needs a trace, and no folder is given.
    #[error("workload {name} replays a trace: give its folder with --traces DIR")]
    NoTraces { name: &'static str },
    #[error(transparent)]
    Trace(#[from] TraceError),
}

const CONVERSATION: &[&str] = &["mooncake-conversation.jsonl", "conversation_trace.jsonl"];
const TOOL_AGENT: &[&str] = &["mooncake-toolagent.jsonl", "toolagent_trace.jsonl"];

/// Few big caches with prefix-based placement, or many small ones in rotation.
const AFFINE: ReplayParameters = ReplayParameters {
    capacity: 32_768,
    placement: Placement::Affine,
};
const IN_TURN: ReplayParameters = ReplayParameters {
    capacity: 8_192,
    placement: Placement::RoundRobin,
};

const ALL: [Recipe; 7] = [
    Recipe {
        name: "conversation_w64",
        source: WorkloadSource::Conversation(AFFINE),
        targets: 64,
    },
    Recipe {
        name: "conversation_w512",
        source: WorkloadSource::Conversation(IN_TURN),
        targets: 512,
    },
    Recipe {
        name: "toolagent_w64",
        source: WorkloadSource::ToolAgent(AFFINE),
        targets: 64,
    },
    Recipe {
        name: "toolagent_w512",
        source: WorkloadSource::ToolAgent(IN_TURN),
        targets: 512,
    },
    Recipe {
        name: "synthetic_512",
        source: WorkloadSource::Synthetic(512),
        targets: 64,
    },
    Recipe {
        name: "synthetic_2048",
        source: WorkloadSource::Synthetic(2048),
        targets: 64,
    },
    Recipe {
        name: "synthetic_8192",
        source: WorkloadSource::Synthetic(8192),
        targets: 64,
    },
];

impl FromStr for Recipe {
    type Err = WorkloadError;

    fn from_str(name: &str) -> Result<Self, WorkloadError> {
        let found = ALL.iter().find(|recipe| recipe.name == name);
        found
            .copied()
            .ok_or_else(|| WorkloadError::Unknown { name: name.into() })
    }
}

impl Recipe {
    pub(crate) fn all() -> &'static [Self] {
        &ALL
    }

    fn names() -> String {
        ALL.map(|recipe| recipe.name).join(", ")
    }

    /// Whether it needs a trace.
    pub(crate) fn needs_trace(&self) -> bool {
        matches!(self.source, WorkloadSource::Conversation(_))
    }

    /// Creates the workload; `traces` is the folder of the traces.
    pub(crate) fn make(
        &self,
        traces: Option<&Path>,
        size: Size,
    ) -> Result<Workload, WorkloadError> {
        let part = |all: usize| match size {
            Size::Full => all,
            Size::Quick => all / 4,
        };
        let (records, how) = match self.source {
            WorkloadSource::Synthetic(depth) => {
                // Deep chains need fewer queries for the same number of blocks.
                let queries = part(12_000.min(40_000_000 / depth));
                return Ok(synthetic::draw(
                    depth,
                    part(1_000_000),
                    queries,
                    self.targets,
                ));
            }
            WorkloadSource::Conversation(how) => {
                let folder = traces.ok_or(WorkloadError::NoTraces { name: self.name })?;
                (records::read(&records::find(folder, CONVERSATION)?)?, how)
            }
            WorkloadSource::ToolAgent(how) => {
                match traces.and_then(|folder| records::find(folder, TOOL_AGENT).ok()) {
                    Some(path) => (records::read(&path)?, how),
                    None => (toolagent::draw(toolagent::REQUESTS), how),
                }
            }
        };
        Ok(replay(
            &records[..part(records.len())],
            self.targets,
            how.capacity,
            how.placement,
        ))
    }
}
