//! The official SDKs of OpenAI and Anthropic against engine and router; the router adds no
//! difference.

mod programs;
mod same_bytes;

use crate::harness::{Program, RouterQueries as _};

/// An engine with the OpenAI APIs, one with the Anthropic API too, and a router before each.
struct SdkBench {
    engine: Program,
    native: Program,
    router: Program,
    native_router: Program,
    /// A router with a cache before the first engine.
    cached_router: Program,
}

impl SdkBench {
    fn start() -> Self {
        // Slow enough that a client can leave before the end.
        let engine = Program::engine(&["--itl-ms", "2"]);
        let native = Program::engine(&["--itl-ms", "2", "--anthropic"]);
        let router = Program::serve(&[engine.url()], &[]).ready(1);
        let native_router = Program::serve(&[native.url()], &[]).ready(1);
        let cached_router =
            Program::serve_with("response_cache: {enabled: true}\n", &[engine.url()], &[]).ready(1);
        Self {
            engine,
            native,
            router,
            native_router,
            cached_router,
        }
    }
}
