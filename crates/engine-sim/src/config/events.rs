//! The checked settings of event publishing.

use zmtp::Endpoint;

use super::{error::EngineError, vllm_events};
use crate::{EventFormat, HashFormat, ReplayFormat, args::EventArgs};

/// The settings of event publishing.
#[derive(Clone, Debug)]
pub(crate) struct EventSettings {
    pub(crate) events: Endpoint,
    /// `None`: a reader cannot recover missed batches.
    pub(crate) replay: Option<Endpoint>,
    pub(crate) topic: String,
    pub(crate) buffer_steps: usize,
    pub(crate) event_format: EventFormat,
    pub(crate) hash_format: HashFormat,
    pub(crate) replay_format: ReplayFormat,
}

impl EventSettings {
    /// Returns the settings for so many ranks; `None`: nothing is published.
    pub(super) fn new(args: EventArgs, dp_size: u32) -> Result<Option<Self>, EngineError> {
        let args = vllm_events::applied(args)?;
        if args.no_kv_events {
            return Ok(None);
        }
        let endpoint = |name, text: &str| {
            text.parse::<Endpoint>()
                .map_err(|_| EngineError::flag(name, text, "tcp://host:port or ipc:///path"))
        };
        let events = endpoint("kv-events", &args.kv_events)?;
        let replay = if args.no_replay {
            None
        } else {
            Some(endpoint("replay", &args.replay)?)
        };
        let last = dp_size - 1;
        for (name, endpoint) in std::iter::once(("kv-events", &events))
            .chain(replay.iter().map(|endpoint| ("replay", endpoint)))
        {
            let fits = endpoint
                .port()
                .is_none_or(|port| port == 0 || u32::from(port) + last <= u32::from(u16::MAX));
            if !fits {
                return Err(EngineError::flag(
                    name,
                    endpoint,
                    format!("a port that leaves room for {dp_size} ranks"),
                ));
            }
        }
        if let Some(replay) = &replay
            && let (Some(first), Some(second)) = (events.port(), replay.port())
            && first != 0
            && second != 0
            && u32::from(first.abs_diff(second)) <= last
        {
            // Each rank takes the next port of both, as in the real engine, where this mistake is
            // common.
            return Err(EngineError::flag(
                "replay",
                replay,
                format!("a port at least {dp_size} away from --kv-events"),
            ));
        }
        if args.buffer_steps == 0 {
            return Err(EngineError::flag("buffer-steps", 0, "at least 1"));
        }
        Ok(Some(Self {
            events,
            replay,
            topic: args.topic,
            buffer_steps: args.buffer_steps,
            event_format: args.event_format,
            hash_format: args.hash_format,
            replay_format: args.replay_format,
        }))
    }
}

/// Returns the endpoint of a data-parallel rank: the next ports, port 0 unchanged, and a suffix for
/// unix sockets.
pub(crate) fn endpoint_of_rank(endpoint: &Endpoint, rank: u32) -> Endpoint {
    let mut endpoint = endpoint.clone();
    match &mut endpoint {
        Endpoint::Tcp { port, .. } if *port != 0 => {
            // The configuration check ensured that the last rank's port exists.
            *port = u16::try_from(u32::from(*port) + rank).unwrap_or(u16::MAX);
        }
        Endpoint::Ipc(path) if rank > 0 => {
            let mut name = path.clone().into_os_string();
            name.push(format!("_dp{rank}"));
            *path = name.into();
        }
        Endpoint::Tcp { .. } | Endpoint::Ipc(_) => {}
    }
    endpoint
}
