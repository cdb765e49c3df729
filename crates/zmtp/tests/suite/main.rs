//! The integration tests of the crate, linked once, as one program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bound_peers;
mod changed_sessions;
mod codec;
mod interop;
mod sockets;
