//! Workloads that are made up, as text in the layout of recorded ones: they are played, written and read like these.
//!
//! `chat?sessions=200&seed=7` names one: a kind, and what differs from its usual parameters. Kinds: conversations that
//! grow turn by turn (`chat`), agents that call tools behind a prompt that all of them share (`agents`), and tenants
//! that each have a long prompt of their own (`tenants`).
//!
//! Nothing is claimed about any real system's traffic: a synthetic workload shows what a policy does with a shape.
//!
//! **Invariant**: whole numbers alone, so the same name gives the same bytes on every platform.

mod agents;
mod chat;
mod length;
mod parameters;
mod prompt;
mod tenants;

use kv_blocks::BlockSize;

pub use self::parameters::{Parameter, SyntheticError};
use self::{
    parameters::{Values, parsed},
    prompt::{MOST_BLOCKS, PlannedRequest, Sessions, written},
};
use crate::random::SplitMix64;

/// Longest prompt that is made up, in tokens: where conversations end, as they do at a model's longest context.
const LONGEST_PROMPT: u32 = 120_000;

/// Most requests that are made up.
const MOST_REQUESTS: usize = 1 << 20;

/// Keeps the numbers drawn here apart from all others; the stream's number stands beside it.
const PURPOSE: u64 = 3 << 32;

/// A kind of workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadKind {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub doc: &'static str,
    /// What can be set, `seed` apart, which all kinds have.
    pub parameters: &'static [Parameter],
    plan: for<'a> fn(&'a Values) -> Box<dyn Iterator<Item = PlannedRequest> + 'a>,
}

/// Every kind.
pub const KINDS: [WorkloadKind; 3] = [chat::KIND, agents::KIND, tenants::KIND];

/// A workload by name, checked.
///
/// ```
/// use kv_blocks::BlockSize;
/// use simulate::{Synthetic, Trace};
///
/// let chat: Synthetic = "chat?sessions=20&seed=7".parse().unwrap();
/// let size = BlockSize::new(512).unwrap();
/// let trace = Trace::read(&chat.text(size).unwrap(), size).unwrap();
/// assert!(trace.requests.len() > 20);
/// assert!("chat?sesions=20".parse::<Synthetic>().is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Synthetic {
    kind: WorkloadKind,
    values: Values,
}

impl std::str::FromStr for Synthetic {
    type Err = SyntheticError;

    fn from_str(name: &str) -> Result<Self, SyntheticError> {
        parsed(name).map(|(kind, values)| Self { kind, values })
    }
}

impl Synthetic {
    /// The workload as JSON lines in the Mooncake layout, in the order of arrival, with ids for blocks of this size.
    ///
    /// # Errors
    ///
    /// [`SyntheticError::TooLong`] if there are more requests, or more blocks, than are made up.
    pub fn text(&self, block_size: BlockSize) -> Result<String, SyntheticError> {
        self.written(block_size, Sessions::Unnamed)
    }

    /// The same, with a number for each conversation or run in `session`.
    ///
    /// # Errors
    ///
    /// As of [`Synthetic::text`].
    pub fn text_with_sessions(&self, block_size: BlockSize) -> Result<String, SyntheticError> {
        self.written(block_size, Sessions::Numbered)
    }

    fn written(&self, block_size: BlockSize, sessions: Sessions) -> Result<String, SyntheticError> {
        let mut planned: Vec<_> = (self.kind.plan)(&self.values)
            .take(MOST_REQUESTS + 1)
            .collect();
        if planned.len() > MOST_REQUESTS {
            return Err(SyntheticError::TooLong);
        }
        // Stable: who plans first comes first among equals.
        planned.sort_by_key(|request| request.at_ms);
        written(&planned, block_size, sessions, MOST_BLOCKS)
    }
}

/// The numbers of one session, run or request: adding another one changes nothing about the others.
fn stream(values: &Values, number: u64) -> SplitMix64 {
    SplitMix64::new(values.get("seed"), PURPOSE | number)
}
