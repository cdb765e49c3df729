//! An oracle for the index: the same random operations go to the index and to a plain model, and
//! every answer is compared.
//!
//! - [`world`]: the content: prompts that share beginnings, in several namespaces, and the targets.
//! - [`step`]: one operation, readable in a failure, meaningful in any state.
//! - [`truth`]: the expected content, as plain sets.
//! - [`trial`]: the index beside the truth; applies steps and compares. [`setup`] has its
//!   parameters, [`events`] the announcements of targets, [`answers`] the lookups.
//! - [`whole`]: comparison of the complete content: dump, counts, digests.
//! - [`reduce`]: reduction of a failure to few steps.
//! - [`readers`]: lookups beside one writer.
//!
//! Not here: blocks that a target holds more than once, which `tests/against_a_model.rs` and
//! `tests/copies.rs` test. No target stores again a block that it holds on its device, except by a
//! second announcement of a prompt from its root, which counts nothing twice.
//!
//! **Invariant**: a trial depends only on its seed and its steps.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

pub(crate) mod random;
pub(crate) mod readers;
pub(crate) mod reduce;
pub(crate) mod setup;
pub(crate) mod step;
pub(crate) mod trial;
pub(crate) mod truth;
pub(crate) mod whole;
pub(crate) mod world;

mod answers;
mod events;
mod naming;
