//! The integration tests of the crate, linked once, as one program.

mod recorded;

mod conversations;
mod engine_tokens;
mod engine_verdicts;
mod hostile_input;
mod template_families;
mod two_libraries;
