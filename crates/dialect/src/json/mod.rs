//! A strict, borrowed reader of JSON text.
//!
//! The reader walks a text once, checks the whole grammar, and returns members as slices of the
//! text. It builds no tree, copies nothing and does not recurse. It is no general parser.

pub(crate) mod compact;
mod error;
mod passed_on;
pub(crate) mod raw;
mod scan;
mod special;
mod text;
pub(crate) mod turns;
mod walk;
mod write;

pub use error::{JsonError, MAX_DEPTH, MAX_NODES};
pub(crate) use passed_on::BodyMembers;
pub use passed_on::PassedOn;
pub use raw::RawJson;
pub(crate) use scan::{object, utf8, whole};
pub(crate) use text::{decode, write_string};
pub(crate) use walk::{body_members, elements, members};
pub(crate) use write::{ArrayWriter, ObjectWriter};
