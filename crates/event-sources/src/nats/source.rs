//! The specification of a stream over NATS.

use std::sync::Arc;

use kv_blocks::{StreamPosition, Target};
use kv_events::SequencerSettings;
use kv_index::KvIndex;
use nats_client::{NatsConnection, NatsDialer};
use net::{Clock, TrustRoots};

use super::{NatsCredentials, NatsEndpoint, follower::NatsFollower, request::NatsRequester};
use crate::{
    BlockSink, EventDefaults, SourceHandle, SourceSettings, handle::SourceInfo, replay::AHEAD,
    stream_driver::DriverSpec,
};

/// One stream to follow.
#[derive(Clone, Debug)]
pub struct NatsSpec {
    /// The target whose cache the events describe.
    pub target: Target,
    /// The worker's name.
    pub worker: Arc<str>,
    /// The model its blocks belong to; registered with the index before any update is applied.
    pub model: Arc<str>,
    /// The server and the subject that a relay publishes on.
    pub endpoint: NatsEndpoint,
    /// Credentials for the server.
    pub credentials: Option<NatsCredentials>,
    /// Trusted certificate authorities for encrypted connections; `None`: those of this machine.
    pub trust: Option<TrustRoots>,
    /// Whether missed batches are requested. Only the relay knows whether the engine keeps them.
    pub replay: bool,
    /// Prefix of the accepted topics.
    pub topic: String,
    /// Defaults for fields that the events lack.
    pub defaults: EventDefaults,
    /// The position of the target's blocks from an earlier process, if it has some.
    pub resume: Option<StreamPosition>,
    /// Limits and times. A message of more than `max_message` bytes stays in memory until it is
    /// dropped; the server's `max_payload` bounds it. `destinations` applies to every connection;
    /// under `tls://` the name is resolved a second time for the connection, and the certificate
    /// must be for it.
    pub settings: SourceSettings,
}

impl NatsSpec {
    /// Describes a stream with default settings.
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
            resume: None,
            settings: SourceSettings::default(),
        }
    }

    pub(crate) fn driver_spec(&self) -> DriverSpec {
        DriverSpec {
            target: self.target,
            worker: Arc::clone(&self.worker),
            endpoint: self.endpoint.to_string(),
            defaults: self.defaults.clone(),
            sequencer: SequencerSettings {
                resume: self.resume,
                ..self.settings.sequencer(self.replay)
            },
            stale_after: self.settings.stale_after,
        }
    }

    pub(crate) fn dial(&self) -> NatsDialer {
        NatsDialer {
            server: self.endpoint.server().clone(),
            credentials: self.credentials.clone(),
            trust: self.trust.clone(),
            destinations: self.settings.destinations.clone(),
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

/// Follows the messages that a relay publishes on a NATS subject.
#[derive(Debug)]
pub struct NatsSource;

impl NatsSource {
    /// Starts following the subject in a task of the current runtime; reconnects until stopped.
    pub fn spawn(spec: NatsSpec, index: Arc<KvIndex>, clock: Clock) -> SourceHandle {
        Self::spawn_into(spec, index, clock)
    }

    /// Like [`NatsSource::spawn`], but sends the updates to `sink`, such as a [`crate::FanOut`].
    pub fn spawn_into(spec: NatsSpec, sink: Arc<dyn BlockSink>, clock: Clock) -> SourceHandle {
        let about = SourceInfo {
            kind: "nats",
            worker: Arc::clone(&spec.worker),
            rank: spec.target.rank.0,
            endpoint: spec.endpoint.to_string(),
            replay_endpoint: spec.replay.then(|| format!("{}.replay", spec.endpoint)),
        };
        SourceHandle::start(about, clock, |status_sender, control| {
            NatsFollower::new(spec, sink, clock, status_sender).run(control)
        })
    }
}
