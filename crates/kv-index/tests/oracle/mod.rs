//! An oracle for the index: the same random operations go to the index and to the plainest thing that could be right, and
//! every answer is compared.
//!
//! - [`world`]: the content there is: prompts that share beginnings, in several namespaces, and the targets.
//! - [`step`]: one operation, readable in a failure, meaningful in any state.
//! - [`truth`]: what should be held, as plain sets.
//! - [`trial`]: the index beside the truth; plays steps and compares. [`setup`] says what it is like, [`events`] has what
//!   targets announce, [`answers`] what lookups say.
//! - [`whole`]: comparison of all the content at once: dump, counts, digests.
//! - [`reduce`]: the few steps that a failure needs.
//! - [`readers`]: lookups beside one writer.
//!
//! Not here: blocks that a target holds more than once, which `against_a_model.rs` and `copies.rs` in `tests/suite` are about.
//! No target stores again what it holds on its device, except by announcing a prompt from its root once more, which
//! counts nothing twice.
//!
//! **Invariant**: a trial depends on its seed and its steps alone.

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
