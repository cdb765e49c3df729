//! The simulation as a whole: times computed by hand, figures confirmed by another simulator, and
//! late or lost events.

mod agreement;
mod by_hand;
mod closed_loop;
mod comparison;
mod events;
mod fairness;
mod faults;
mod fetch;
mod fit;
mod models;
mod page;
mod replicas;
mod slo;
mod synthetic;

use engine_model::Profile;
use kv_blocks::BlockSize;
use routing::{Policy, RoutingSettings};
use simulate::{Cell, Trace, TracePace};

/// Engines of the usual profile under a policy, at the recorded speed.
fn cell(policy: Policy, workers: u32) -> Cell {
    let routing = RoutingSettings {
        policy,
        ..RoutingSettings::default()
    };
    Cell::new(
        routing,
        workers,
        TracePace::faster(1.0),
        Profile::named("8b-h200").unwrap(),
    )
}

/// A trace with blocks of 512 tokens.
fn read(text: &str) -> Trace {
    Trace::read(text, BlockSize::new(512).unwrap()).unwrap()
}

/// One line of a trace, with a whole block for each id.
fn line(at_ms: u32, ids: &[u64], output_tokens: u32) -> String {
    let tokens = ids.len() * 512;
    format!(
        r#"{{"timestamp": {at_ms}, "input_length": {tokens}, "output_length": {output_tokens}, "hash_ids": {ids:?}}}"#
    )
}
