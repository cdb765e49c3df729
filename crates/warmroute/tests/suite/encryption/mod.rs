//! Encryption towards workers and clients, and the listeners beside the first one.

#![allow(unreachable_pub, reason = "modules of a test")]

mod certificates;
mod front;
mod listeners;
mod workers;
