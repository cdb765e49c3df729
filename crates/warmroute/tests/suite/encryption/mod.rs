//! Encryption towards workers and clients, and additional listeners.

#![allow(unreachable_pub, reason = "modules of a test")]

mod certificates;
mod clients;
mod front;
mod listeners;
mod redis;
mod workers;

pub(crate) use certificates::TestAuthority;
pub(crate) use front::TlsFront;
