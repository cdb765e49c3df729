//! Another router's configuration becomes one of ours, as text: `warmroute config convert`.
//!
//! One file per router says which of its keys is which of ours; `given` reads its file, `ours` writes ours.
//! What it means is not checked here beyond the shape of values: that is the part of [`crate::load`].
//!
//! **Invariant**: a text comes out only if nothing was wrong; every key of the other file is then in it, as a key of ours
//! or by name in a comment.

mod continuum;
mod converted_config;
mod flags;
mod model_path;
mod source_config;
mod vllm_router;

pub use continuum::convert_continuum;
pub use flags::{SourceRouter, convert_command, convert_flags};
pub use vllm_router::convert_vllm_router;
