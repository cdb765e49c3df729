//! vLLM's flag `--kv-events-config`, whose JSON replaces the simulated engine's own flags.

use serde::Deserialize;

use super::error::EngineError;
use crate::args::EventArgs;

const EXPECTED: &str =
    "vLLM's KVEventsConfig as JSON, for example {\"enable_kv_cache_events\": true}";

/// The fields of vLLM's `KVEventsConfig`, with its defaults.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct KvEventsConfig {
    enable_kv_cache_events: bool,
    /// Unset: `zmq` where events are enabled.
    publisher: Option<String>,
    endpoint: String,
    replay_endpoint: Option<String>,
    buffer_steps: usize,
    /// Of the real publisher's queues; the simulated one has bounds of its own.
    hwm: u64,
    max_queue_size: u64,
    topic: String,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self {
            enable_kv_cache_events: false,
            publisher: None,
            endpoint: "tcp://*:5557".to_owned(),
            replay_endpoint: None,
            buffer_steps: 10_000,
            hwm: 100_000,
            max_queue_size: 100_000,
            topic: String::new(),
        }
    }
}

/// Returns the arguments with the values of `--kv-events-config`, where it is given.
pub(super) fn applied(args: EventArgs) -> Result<EventArgs, EngineError> {
    let Some(text) = &args.kv_events_config else {
        return Ok(args);
    };
    let invalid = |why: &str| {
        let expected = format!("{EXPECTED}: {why}");
        EngineError::flag("kv-events-config", text, expected)
    };
    let config: KvEventsConfig =
        serde_json::from_str(text).map_err(|error| invalid(&error.to_string()))?;
    let publishes = match config.publisher.as_deref() {
        None | Some("zmq") => config.enable_kv_cache_events,
        Some("null") => false,
        Some(other) => {
            return Err(invalid(&format!("publisher {other:?} is not zmq or null")));
        }
    };
    Ok(EventArgs {
        no_kv_events: !publishes,
        kv_events: config.endpoint,
        no_replay: config.replay_endpoint.is_none(),
        replay: config.replay_endpoint.unwrap_or_default(),
        buffer_steps: config.buffer_steps,
        topic: config.topic,
        ..args
    })
}
