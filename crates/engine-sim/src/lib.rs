//! A simulated inference engine: an OpenAI-compatible HTTP server with real KV events and no
//! accelerator.
//!
//! It runs [`engine_model`] in real time, one task per data-parallel rank, with the HTTP and ZMQ
//! formats of vLLM 0.32. It computes no model: a reply's text is a function of the seed and the
//! prompt's token ids.
//!
//! **Invariant**: `cached_tokens`, the metrics and the published events all describe one cache, the
//! model's block pool.

mod args;
mod config;
mod detokenizer;
mod duration;
mod fault;
mod generation;
mod http;
mod publisher;
mod rank;
mod running_engine;
mod script;
mod server_state;
mod stream_action;
mod tokenizer;
mod wire;

pub use args::{EngineArgs, EventFormat, HashFormat, ReplayFormat, WorkerRole};
pub use config::{EngineConfig, EngineError};
pub use running_engine::{RunningEngine, start};
