//! Workers over real sockets: found, lost, found again.

mod fake_engine;
mod identity;
mod lifecycle;
mod requests;
mod setup;
mod tokenizers;
