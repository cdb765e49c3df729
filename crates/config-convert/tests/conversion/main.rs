//! What a configuration of another router becomes.

mod command_lines;
mod sources;
mod vllm_router;
