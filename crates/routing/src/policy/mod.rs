//! Policies: the rules that compute the candidates' costs. One file per policy.
//!
//! A policy only gives each candidate a cost; the lowest wins. Ties, temperatures, reservations and
//! receipts are common to all policies and implemented elsewhere, so a new policy is one file, one
//! name and one line in [`PolicyRules`].

pub(crate) use self::{
    cost::{CandidateCost, FALLBACK},
    input::{CandidateState, PolicyCandidate, PolicyInput},
    rules::PolicyRules,
};
pub use self::{
    cost::{CostUnit, Terms},
    lmcache_aware::LMCACHE_PREFIX,
    name::{Policy, UnknownPolicy},
};

mod cache_aware;
pub(crate) mod composite;
mod consistent_hash;
mod cost;
mod dynamo_cost;
mod input;
mod kv_aware;
mod least_latency;
mod least_loaded;
mod lmcache_aware;
mod load_factor;
mod name;
mod power_of_two;
mod prefix_hash;
mod prefix_memory_hint;
mod random;
mod rendezvous_hash;
mod ring;
mod round_robin;
mod rule;
mod rules;
mod warm;
mod weighted_round_robin;
