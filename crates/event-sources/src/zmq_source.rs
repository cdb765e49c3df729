//! A ZMQ stream.

use std::{sync::Arc, time::Duration};

use kv_blocks::{Moment, Target};
use kv_events::StreamState;
use kv_index::KvIndex;
use net::Clock;
use tokio::sync::watch;
use zmtp::Endpoint;

use crate::{SourceCounters, StreamReport};

/// One stream to follow.
#[derive(Clone, Debug)]
pub struct SourceSpec {
    /// Whose cache it speaks of.
    pub target: Target,
    /// The worker's name.
    pub worker: Arc<str>,
    /// The model its blocks belong to; registered with the index before anything is applied.
    pub model: Arc<str>,
    /// The publisher's socket, with the worker's host in it.
    pub endpoint: Endpoint,
    /// The replay socket, with the worker's host in it.
    pub replay_endpoint: Option<Endpoint>,
    /// Only topics that start with this.
    pub topic: String,
    /// Bind `endpoint` and let the publisher connect, in place of connecting to it.
    pub bind: bool,
    /// Limits and times.
    pub settings: SourceSettings,
}

/// Limits and times of a stream.
#[derive(Clone, Debug)]
pub struct SourceSettings {
    /// Longest accepted message, bytes.
    pub max_message: usize,
    /// Live batches kept while history is fetched.
    pub queue_batches: usize,
    /// A connected stream without a message is called stale after this.
    pub stale_after: Duration,
    /// A replay without a message for this long has failed.
    pub replay_timeout: Duration,
}

impl Default for SourceSettings {
    fn default() -> Self {
        Self {
            max_message: 64 << 20,
            queue_batches: 65_536,
            stale_after: Duration::from_secs(60),
            replay_timeout: Duration::from_secs(5),
        }
    }
}

/// Follows one publisher's ZMQ sockets.
#[derive(Debug)]
pub struct ZmqSource {}

impl ZmqSource {
    /// Starts following; reconnects until stopped.
    pub fn spawn(_spec: SourceSpec, _index: Arc<KvIndex>, _clock: Clock) -> SourceHandle {
        todo!()
    }
}

/// A running source. Dropping it stops it without waiting.
#[derive(Debug)]
pub struct SourceHandle {}

impl SourceHandle {
    /// The stream as it stands.
    pub fn report(&self) -> StreamReport {
        todo!()
    }

    /// Where the stream stands.
    pub fn state(&self) -> StreamState {
        todo!()
    }

    /// When the last batch came.
    pub fn last_event_at(&self) -> Option<Moment> {
        todo!()
    }

    /// Totals for metrics.
    pub fn counters(&self) -> SourceCounters {
        todo!()
    }

    /// Tokens per block, as the publisher's device stores say.
    pub fn announced_block_size(&self) -> Option<u32> {
        todo!()
    }

    /// A number that grows whenever the index or the stream's state changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        todo!()
    }

    /// Stops and waits for the end; what the index knows stays.
    #[expect(clippy::unused_async, reason = "stub")]
    pub async fn stop(self) {
        todo!()
    }
}
