//! Bodies and answers in msgpack, for callers that ask in it.

mod read;
mod write;

pub(crate) use read::read;
pub(crate) use write::write;
