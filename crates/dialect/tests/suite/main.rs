//! The integration tests of the crate, linked once, as one program.

#![allow(
    clippy::unwrap_used,
    reason = "a set-up that does not work is a failed test"
)]

mod anthropic_reply;
mod anthropic_request;
mod chat_over_messages;
mod event_stream;
mod hook;
mod internal_detail;
mod json_grammar;
mod kept;
mod native_generation;
mod prefix_key;
mod request_key;
mod request_view;
mod single_walk;
mod splice;
