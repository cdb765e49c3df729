//! What a decision of an embedded router costs in Rust, for `python/bench/decision_cost.py`:
//!
//! ```sh
//! cargo build --profile dist -p warmroute --example embedded_decision
//! target/dist/examples/embedded_decision TOKENS CALLS WORKER...
//! ```
//!
//! Prints the nanoseconds of a call, from the fastest tenth of the calls.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "it is there to measure and to print"
)]

use std::{env, error::Error, time::Instant};

use tokio::runtime::Runtime;
use warmroute::embed::{EmbeddedRouter, EmbeddedSettings, TokenQuery};

/// Parts of the calls, of which the fastest counts.
const PARTS: u32 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [tokens, calls, workers @ ..] = arguments.as_slice() else {
        return Err("usage: embedded_decision TOKENS CALLS WORKER...".into());
    };
    let (tokens, calls): (u32, u32) = (tokens.parse()?, calls.parse()?);
    let settings = EmbeddedSettings {
        text: None,
        workers: workers.to_vec(),
    };
    let part = (calls / PARTS).max(1);
    let fastest = Runtime::new()?.block_on(fastest_part(settings, tokens, part))?;
    println!("{}", fastest / f64::from(part));
    Ok(())
}

/// Returns the nanoseconds of the fastest part of the calls.
async fn fastest_part(
    settings: EmbeddedSettings,
    tokens: u32,
    calls: u32,
) -> Result<f64, Box<dyn Error>> {
    let router = EmbeddedRouter::start(settings)
        .await
        .map_err(|error| error.message)?;
    let token_ids: Vec<u32> = (0..tokens).collect();
    let query = TokenQuery {
        token_ids: &token_ids,
        ..TokenQuery::default()
    };
    let mut fastest = f64::INFINITY;
    for _ in 0..PARTS {
        let started = Instant::now();
        for _ in 0..calls {
            let best = router.best_worker(&query).await;
            best.map_err(|error| error.message)?;
        }
        fastest = fastest.min(started.elapsed().as_secs_f64() * 1e9);
    }
    router.close().await;
    Ok(fastest)
}
