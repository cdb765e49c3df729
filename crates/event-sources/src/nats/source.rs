//! A stream over NATS: what it needs to be followed.

use std::sync::Arc;

use kv_blocks::Target;
use kv_index::KvIndex;
use net::{Clock, TrustRoots};

use super::{
    NatsCredentials, NatsEndpoint,
    dial::{NatsConnection, NatsDialer},
    follower::NatsFollower,
    request::NatsRequester,
};
use crate::{
    BlockSink, EventDefaults, SourceHandle, SourceSettings, handle::SourceInfo, replay::AHEAD,
    stream_driver::DriverSpec,
};

/// One stream to follow.
#[derive(Clone, Debug)]
pub struct NatsSpec {
    /// Whose cache it speaks of.
    pub target: Target,
    /// The worker's name.
    pub worker: Arc<str>,
    /// The model its blocks belong to; registered with the index before anything is applied.
    pub model: Arc<str>,
    /// The server and the subject that a relay publishes on.
    pub endpoint: NatsEndpoint,
    /// What the server wants to see, if anything.
    pub credentials: Option<NatsCredentials>,
    /// Whose certificates are believed, where the connection is encrypted; `None`: those this machine believes.
    pub trust: Option<TrustRoots>,
    /// Whether missed batches are asked for. Whether the engine has them, its relay knows.
    pub replay: bool,
    /// Only topics that start with this.
    pub topic: String,
    /// What stands in where its events say nothing.
    pub defaults: EventDefaults,
    /// Limits and times. A server that sends more than `max_message` bytes in one message makes us hold them until they
    /// are let go: what it sends at most is its own `max_payload`. `destinations` holds for every connection; under
    /// `tls://` the name is resolved a second time to connect to, and the certificate must be for it.
    pub settings: SourceSettings,
}

impl NatsSpec {
    /// A stream of which nothing but this is known.
    pub fn new(
        target: Target,
        worker: impl Into<Arc<str>>,
        model: impl Into<Arc<str>>,
        endpoint: NatsEndpoint,
    ) -> Self {
        Self {
            target,
            worker: worker.into(),
            model: model.into(),
            endpoint,
            credentials: None,
            trust: None,
            replay: true,
            topic: String::new(),
            defaults: EventDefaults::default(),
            settings: SourceSettings::default(),
        }
    }

    pub(crate) fn track(&self) -> DriverSpec {
        DriverSpec {
            target: self.target,
            worker: Arc::clone(&self.worker),
            endpoint: self.endpoint.to_string(),
            defaults: self.defaults.clone(),
            sequencer: self.settings.sequencer(self.replay),
            stale_after: self.settings.stale_after,
        }
    }

    pub(crate) fn dial(&self) -> NatsDialer {
        NatsDialer {
            server: self.endpoint.server().clone(),
            credentials: self.credentials.clone(),
            trust: self.trust.clone(),
            destinations: self.settings.destinations,
            name: "warmroute".to_owned(),
        }
    }

    pub(crate) fn requester(&self, link: &NatsConnection) -> NatsRequester {
        NatsRequester {
            client: link.client.clone(),
            subject: self.endpoint.subject().clone(),
            topic: self.topic.clone(),
            max_message: self.settings.max_message,
            max_bytes: AHEAD,
            timeout: self.settings.replay_timeout,
        }
    }
}

/// Follows what a relay puts on a NATS subject.
#[derive(Debug)]
pub struct NatsSource;

impl NatsSource {
    /// Starts following, in a task of the current runtime; reconnects until stopped.
    pub fn spawn(spec: NatsSpec, index: Arc<KvIndex>, clock: Clock) -> SourceHandle {
        Self::spawn_into(spec, index, clock)
    }

    /// The same for a stream whose updates go elsewhere, as into a [`crate::FanOut`].
    pub fn spawn_into(spec: NatsSpec, sink: Arc<dyn BlockSink>, clock: Clock) -> SourceHandle {
        let about = SourceInfo {
            kind: "nats",
            worker: Arc::clone(&spec.worker),
            rank: spec.target.rank.0,
            endpoint: spec.endpoint.to_string(),
            replay_endpoint: spec.replay.then(|| format!("{}.replay", spec.endpoint)),
        };
        SourceHandle::start(about, clock, |outlet, orders| {
            NatsFollower::new(spec, sink, clock, outlet).run(orders)
        })
    }
}
