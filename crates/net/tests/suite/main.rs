//! The integration tests of the crate, linked once, as one program.

#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its own helpers too"
)]

mod fetch;
mod server;
mod sockets;
mod tls;
mod worker_url;
