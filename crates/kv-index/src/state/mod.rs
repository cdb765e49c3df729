//! The writer's state: the targets, the engine hashes, the orphans, and the speculative entries
//! with their expiry. All of it is behind the index's lock; lookups do not use it.
//!
//! `index_state` has the data; each of the other modules has one kind of change or report.

mod budget;
mod change_capture;
#[cfg(test)]
mod check;
mod chunks;
mod clearing;
mod events;
mod export;
mod index_state;
mod loading;
mod named;
mod positions;
mod registration;
mod removing;
mod reports;
mod saving;
mod speculate;
mod speculation_end;
mod speculative_entries;
mod storing;
mod targets;
#[cfg(test)]
mod tests;

pub(crate) use self::loading::LoadRule;
pub(crate) use self::{
    clearing::ClearScope, index_state::IndexState, saving::PieceToCopy, speculate::ExpectedChain,
    speculative_entries::SpeculationKind,
};
pub use self::{loading::LoadSummary, saving::SaveSummary, speculative_entries::SpeculationId};
