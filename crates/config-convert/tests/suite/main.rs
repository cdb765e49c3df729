//! Conversion of other routers' configurations.

mod command_lines;
mod sources;
mod vllm_router;
