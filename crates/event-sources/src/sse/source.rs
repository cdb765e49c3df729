//! The specification of a stream over HTTP.

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderValue, header::InvalidHeaderValue};
use kv_blocks::DpRank;
use net::{Clock, TrustRoots};
use supervision::contain;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    EventSink, EventTransport, SseEndpoint,
    applier::{Applier, ApplierSettings},
    connection::SseDialer,
    reader::SseReader,
    reader_channel::ReaderChannel,
};
use crate::{SourceHandle, SourceSettings, follower::PENDING_BYTES, handle::SourceInfo};

/// One stream to follow.
#[derive(Clone)]
pub struct SseSpec {
    /// The backend's name.
    pub worker: Arc<str>,
    /// The rank in reports.
    pub rank: DpRank,
    /// The URL of the stream.
    pub endpoint: SseEndpoint,
    /// Value of the `authorization` header.
    pub authorization: Option<HeaderValue>,
    /// Trusted certificate authorities for encrypted endpoints; `None`: those of this machine.
    pub trust: Option<TrustRoots>,
    /// The second wait before a reconnect; the first is one second or this, if it is shorter, and
    /// later ones double up to a minute (`reconnect_interval_ms`).
    pub reconnect_interval: Duration,
    /// Limits and times. Only `destinations`, `stale_after` and `queue_batches` apply; the last one
    /// counts messages here.
    pub settings: SourceSettings,
}

impl SseSpec {
    /// Describes a stream with default settings.
    pub fn new(worker: impl Into<Arc<str>>, endpoint: SseEndpoint) -> Self {
        Self {
            worker: worker.into(),
            rank: DpRank(0),
            endpoint,
            authorization: None,
            trust: None,
            reconnect_interval: Duration::from_secs(5),
            settings: SourceSettings::default(),
        }
    }

    /// Adds a bearer token.
    ///
    /// # Errors
    ///
    /// The token is not valid in a header.
    pub fn bearer(mut self, token: &str) -> Result<Self, InvalidHeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(self)
    }
}

/// Omits the token.
impl fmt::Debug for SseSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SseSpec")
            .field("worker", &self.worker)
            .field("endpoint", &self.endpoint)
            .field("reconnect_interval", &self.reconnect_interval)
            .finish_non_exhaustive()
    }
}

/// Follows one backend's stream of server-sent events, or its WebSocket.
#[derive(Debug)]
pub struct SseSource;

impl SseSource {
    /// Starts following the stream in tasks of the current runtime; reconnects until stopped.
    pub fn spawn(spec: SseSpec, sink: Box<dyn EventSink>, clock: Clock) -> SourceHandle {
        let kind = match spec.endpoint.carrier() {
            EventTransport::Sse => "sse",
            EventTransport::WebSocket => "ws",
        };
        let about = SourceInfo {
            kind,
            worker: Arc::clone(&spec.worker),
            rank: spec.rank.0,
            endpoint: spec.endpoint.to_string(),
            replay_endpoint: None,
        };
        // When full, messages are dropped and counted: the reader never waits.
        let (sender, queue) = mpsc::channel(spec.settings.queue_batches.max(1));
        let link = Arc::new(ReaderChannel::new(PENDING_BYTES));
        let reader = SseReader {
            dial: SseDialer {
                endpoint: spec.endpoint.clone(),
                authorization: spec.authorization,
                trust: spec.trust,
                destinations: spec.settings.destinations.clone(),
            },
            reconnect_interval: spec.reconnect_interval,
            queue: sender,
            link: Arc::clone(&link),
            clock,
        };
        // The task's end closes the queue, and with it ends the stream.
        let reading = ReaderTask(runtime::spawn(async {
            let _ended = contain("sse_reader", reader.run()).await;
        }));
        let settings = ApplierSettings {
            stale_after: spec.settings.stale_after,
            sends_snapshot: spec.endpoint.sends_snapshot(),
        };
        SourceHandle::start(about, clock, move |status_sender, control| async move {
            let reading = reading;
            Applier::new(sink, (link, queue), (clock, status_sender), settings)
                .run(control)
                .await;
            reading.end().await;
        })
    }
}

/// The reader's task, which ends with the applier's.
#[derive(Debug)]
struct ReaderTask(JoinHandle<()>);

impl ReaderTask {
    async fn end(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }
}

impl Drop for ReaderTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}
