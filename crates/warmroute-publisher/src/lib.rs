//! The publisher of KV events for engines in C and C++: `event-publisher` behind C functions.
//!
//! `include/warmroute_publisher.h` documents them; `cargo xtask c-header --write` generates it from
//! [`functions`]. `install` installs header, libraries and pkg-config file.
//!
//! **Invariant**: a handle is a number and not an address. So a handle that was shut down, or is
//! none, is refused and never read.
//!
//! **Invariant**: no signal of the engine is handled on a thread of this library, and a write to a
//! router that is gone ends no engine.
//!
//! **Invariant**: no panic reaches the caller; it becomes `WR_INTERNAL`.

mod arguments;
mod call;
pub mod functions;
mod handles;
mod last_error;
mod signals;

#[cfg(test)]
mod tests;
