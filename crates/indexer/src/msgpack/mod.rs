//! Bodies and replies in msgpack, for clients that request it.

mod read;
mod write;

pub(crate) use read::read;
pub(crate) use write::write;
