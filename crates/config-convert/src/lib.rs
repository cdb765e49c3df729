//! Converts another router's configuration to one of ours, as text: `warmroute config convert`.
//!
//! One file per router maps its keys to ours; `source_config` reads the other file,
//! `converted_config` writes ours. Values are checked here only for their shape: [`config::load`]
//! checks the rest.
//!
//! **Invariant**: a text is returned only if there was no problem; it then contains every key of
//! the other file, as a key of ours or, with the reason, by name in a comment. Only a switch that is
//! off, as it is by default, is in neither.

mod continuum;
mod converted_config;
mod flags;
mod model_path;
mod reasons;
mod source_config;
mod vllm_router;

pub use continuum::convert_continuum;
pub use flags::{SourceRouter, convert_command, convert_flags};
pub use vllm_router::convert_vllm_router;
