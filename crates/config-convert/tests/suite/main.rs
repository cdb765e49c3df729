//! Conversion of other routers' configurations.

mod carried_over;
mod command_lines;
#[path = "../../../config/tests/suite/sources/mod.rs"]
#[allow(dead_code, reason = "the suite of `config` uses the rest")]
mod sources;
mod vllm_router;
