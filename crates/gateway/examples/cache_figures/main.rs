//! Prints the costs of cache-aware routing with their promised bounds, one figure per line:
//! `cargo run --release -p gateway --features redis-cache --example cache_figures`. Ends with 1 if a promise is not kept.
//!
//! Promises: contract CK79 to CK82. One thread, on whatever machine it runs on; times are the median of many rounds.

mod figures;
mod keys;
#[path = "../../../redis-store/tests/redis_server/mod.rs"]
mod redis_server;
mod ring;
mod scoring;
mod silent_redis;
mod stopwatch;
mod view;

use std::{error::Error, process::ExitCode};

use figures::BoundedFigure;

#[expect(clippy::print_stdout, reason = "it measures and prints, nothing else")]
fn main() -> Result<ExitCode, Box<dyn Error>> {
    let figures: Vec<BoundedFigure> = [
        keys::figures()?,
        ring::figures(),
        view::figures()?,
        scoring::figures(),
        silent_redis::figures()?,
    ]
    .into_iter()
    .flatten()
    .collect();
    println!(
        "{:<6} {:<66} {:>14} {:>14}",
        "", "figure", "measured", "promised"
    );
    figures.iter().for_each(|figure| println!("{figure}"));
    Ok(if figures.iter().all(BoundedFigure::is_within_bound) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The settings of a configuration with these sections.
fn settings(text: &str) -> Result<config::Settings, String> {
    let source = config::ConfigSource::of_text("figures", text);
    config::load(source).map_err(|problems| format!("{problems:?}"))
}
