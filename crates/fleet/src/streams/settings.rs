//! The settings of a worker's streams.

use std::time::Duration;

use config::{EventSource, ReplayEndpoint, Secret};
use event_sources::SourceSettings;
use kv_blocks::{BlockSize, HashScheme};
use net::WorkerUrl;

/// A replay without a message for this long has failed: an idle engine answers within about 0.1 s.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(5);

/// The settings that decide where a worker's streams are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StreamSettings {
    pub(crate) own: config::WorkerKvEvents,
    pub(crate) all: config::KvEventsSection,
    /// Whether no other worker has the same host.
    pub(crate) host_is_its_own: bool,
    /// Whether no other worker has the same socket of ours and the same topics.
    pub(crate) bound_alone: bool,
    /// The worker's base URL.
    pub(crate) url: WorkerUrl,
    /// The API key that it requires.
    pub(crate) api_key: Option<Secret>,
    /// The configured block size.
    pub(crate) block_size: Option<BlockSize>,
    /// The hash scheme of the index.
    pub(crate) scheme: HashScheme,
}

impl StreamSettings {
    /// Returns whether a running stream would differ under these settings. Other workers on the
    /// host only matter for finding a stream, and a key only for a new connection.
    pub(crate) fn differ_from(&self, other: &Self) -> bool {
        self.own != other.own
            || self.all != other.all
            || self.url != other.url
            || self.block_size != other.block_size
            || self.scheme != other.scheme
    }

    /// Returns whether events of this worker are enabled.
    pub(crate) fn enabled(&self) -> bool {
        self.all.enabled && (self.own.source != EventSource::None || self.own.store.is_some())
    }

    /// Returns whether missed events are requested from a server other than the engine's own
    /// socket.
    pub(super) fn wants_replay(&self) -> bool {
        self.all.replay && self.own.replay_endpoint != ReplayEndpoint::None
    }

    /// Returns the configured topics.
    pub(super) fn topic(&self) -> Option<&str> {
        [&self.own.topic, &self.all.topic_filter]
            .into_iter()
            .find(|topic| !topic.is_empty())
            .map(String::as_str)
    }

    pub(super) fn source_settings(&self) -> SourceSettings {
        SourceSettings {
            // The rule of the worker itself: an engine that was found must not lead elsewhere.
            destinations: self.url.destinations(),
            max_message: self.all.max_message,
            queue_batches: self.all.queue_batches,
            stale_after: self.all.stale_after,
            replay_timeout: REPLAY_TIMEOUT,
            ..SourceSettings::default()
        }
    }
}
