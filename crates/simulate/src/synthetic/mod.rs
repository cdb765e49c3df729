//! Synthetic workloads, as text in the layout of recorded ones: they are played, written and read
//! like these.
//!
//! `chat?sessions=200&seed=7` names one: a kind, and the parameters that differ from its defaults.
//! Kinds: conversations that grow turn by turn (`chat`), agents that call tools behind a prompt
//! that all of them share (`agents`), tenants that each have a long prompt of their own
//! (`tenants`), and a tenant that asks one question at a time beside others that send many at once
//! (`fanout`).
//!
//! They make no claim about any real system's traffic: a synthetic workload shows a policy's
//! behaviour for one shape of traffic.
//!
//! **Invariant**: only whole numbers are used, so the same name gives the same bytes on every
//! platform.

mod agents;
mod chat;
mod fanout;
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

/// Longest generated prompt, in tokens: conversations end there, as they do at a model's longest
/// context.
const LONGEST_PROMPT: u32 = 120_000;

/// Most generated requests.
const MOST_REQUESTS: usize = 1 << 20;

/// Separates the random numbers drawn here from all others; combined with the stream's number.
const PURPOSE: u64 = 3 << 32;

/// A kind of workload.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadKind {
    /// Its name.
    pub name: &'static str,
    /// Description in a sentence.
    pub doc: &'static str,
    /// Its parameters, except `seed`, which all kinds have.
    pub parameters: &'static [Parameter],
    plan: for<'a> fn(&'a Values) -> Box<dyn Iterator<Item = PlannedRequest> + 'a>,
}

/// Every kind.
pub const KINDS: [WorkloadKind; 4] = [chat::KIND, agents::KIND, tenants::KIND, fanout::KIND];

/// A workload by name, validated.
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
    /// Returns the workload as JSON lines in the Mooncake layout, in the order of arrival, with ids
    /// for blocks of this size.
    ///
    /// # Errors
    ///
    /// [`SyntheticError::TooLong`] if the workload exceeds the limits on requests or blocks.
    pub fn text(&self, block_size: BlockSize) -> Result<String, SyntheticError> {
        self.written(block_size, Sessions::Unnamed)
    }

    /// Like [`Synthetic::text`], with a number for each conversation or run in `session`.
    ///
    /// # Errors
    ///
    /// As for [`Synthetic::text`].
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
        // Stable: requests of the same time stay in the order of planning.
        planned.sort_by_key(|request| request.at_ms);
        written(&planned, block_size, sessions, MOST_BLOCKS)
    }
}

/// Returns the random numbers of one session, run or request: another one does not change them.
fn stream(values: &Values, number: u64) -> SplitMix64 {
    SplitMix64::new(values.get("seed"), PURPOSE | number)
}
