//! Opens a stream of each kind.

use std::{path::Path, str::FromStr, sync::Arc};

use event_sources::{
    Codec, Endpoint, EventDefaults, FanOut, PollSource, PollSpec, PublisherInfo, SharedSpec,
    SocketMember, SourceHandle, SourceSettings, SourceSpec, SseEndpoint, SseSource, SseSpec,
    StandardSink, StandardSinkSpec, ZmqSource,
};
use http::HeaderValue;
use kv_blocks::{DpRank, StreamPosition, Target, WorkerId};
use kv_events::standard::StreamKey;

use super::{followed::FollowedStream, peers, settings::StreamSettings, stream_spec::StreamSpec};
use crate::{probe::event_endpoints::EventEndpoint, worker_table::WorkerTable};

/// Longest token in a file, in bytes.
const LONGEST_TOKEN: u64 = 64 << 10;

/// The owner of a stream.
pub(super) struct StreamOwner<'a> {
    pub(super) worker_table: &'a WorkerTable,
    pub(super) settings: &'a StreamSettings,
    pub(super) id: WorkerId,
    pub(super) name: &'a Arc<str>,
    pub(super) model: &'a Arc<str>,
}

impl StreamOwner<'_> {
    /// Starts to follow a stream; the error gives the reason why that is impossible now.
    pub(super) fn open(&self, spec: &StreamSpec) -> Result<FollowedStream, String> {
        if !spec.resumes() {
            self.worker_table.forget_unproven(self.id);
        }
        let source = match spec {
            StreamSpec::Publisher(endpoint) => self.publisher(endpoint)?,
            StreamSpec::Bound { endpoint, .. } => self.bound(endpoint)?,
            StreamSpec::Standard { endpoint } => self.standard(endpoint)?,
            StreamSpec::Polled { endpoint } => self.polled(endpoint)?,
            StreamSpec::Store { ranks, endpoint } => self.store(*ranks, endpoint)?,
            StreamSpec::Nats { rank, endpoint } => self.nats(DpRank(*rank), endpoint)?,
        };
        let replay = match spec {
            StreamSpec::Publisher(endpoint) => endpoint.replay_endpoint.is_some(),
            // The relay answers for the engine.
            StreamSpec::Nats { .. } => self.settings.wants_replay(),
            StreamSpec::Bound { .. }
            | StreamSpec::Standard { .. }
            | StreamSpec::Store { .. }
            | StreamSpec::Polled { .. } => false,
        };
        Ok(FollowedStream {
            ranks: spec.ranks(),
            replay,
            source,
        })
    }

    fn target(&self, rank: u32) -> Target {
        Target {
            worker: self.id,
            rank: DpRank(rank),
        }
    }

    /// Returns where the stream of a rank must continue for its blocks from an earlier process to be
    /// valid.
    fn resume(&self, rank: u32) -> Option<StreamPosition> {
        self.worker_table.index.resume_position(self.target(rank))
    }

    /// Returns the properties of its blocks that are configured.
    fn defaults(&self) -> EventDefaults {
        EventDefaults {
            block_size: self.settings.block_size,
            ..EventDefaults::default()
        }
    }

    /// Claims an endpoint: one publisher's events must not be credited to two workers.
    fn claim(&self, endpoint: &str) -> Result<(), String> {
        self.worker_table.claim(endpoint, self.id).map_err(|holder| {
            format!("worker {holder} follows the same publisher already: give each worker its own kv_events.endpoint")
        })
    }

    fn publisher(&self, publisher: &EventEndpoint) -> Result<SourceHandle, String> {
        let endpoint = parsed::<Endpoint>(&publisher.endpoint)?;
        let replay_endpoint = publisher
            .replay_endpoint
            .as_deref()
            .map(parsed)
            .transpose()?;
        self.claim(&publisher.endpoint)?;
        let mut spec = SourceSpec::new(
            self.target(publisher.rank),
            Arc::clone(self.name),
            Arc::clone(self.model),
            endpoint,
        );
        spec.replay_endpoint = replay_endpoint;
        spec.topic.clone_from(&publisher.topic);
        spec.defaults = self.defaults();
        spec.resume = self.resume(publisher.rank);
        spec.settings = self.settings.source_settings();
        Ok(self.follow(spec))
    }

    /// Follows a publisher directly, or over the log that routers share. Without a replay endpoint
    /// a loss in the log could not be repaired.
    fn follow(&self, spec: SourceSpec) -> SourceHandle {
        let (index, clock) = (
            Arc::clone(&self.worker_table.index),
            self.worker_table.clock,
        );
        #[cfg(feature = "nats")]
        if let Some(log) = &self.worker_table.event_log
            && spec.replay_endpoint.is_some()
        {
            return event_sources::SharedLogSource::spawn(spec, log, index, clock);
        }
        ZmqSource::spawn(spec, index, clock)
    }

    fn bound(&self, endpoint: &str) -> Result<SourceHandle, String> {
        let mut spec = SharedSpec::new("bound", parsed::<Endpoint>(endpoint)?);
        spec.topic = String::new();
        spec.settings = self.settings.source_settings();
        let socket = self.worker_table.shared_socket(endpoint, spec);
        let member = SocketMember {
            publisher: PublisherInfo {
                id: self.id,
                worker: Arc::clone(self.name),
                model: Arc::clone(self.model),
                defaults: self.defaults(),
                peers: peers::of(&self.settings.url, &self.settings.all.allowed_peers),
            },
            topic: self.settings.topic().unwrap_or_default().to_owned(),
            alone: self.settings.bound_alone,
            pods: vec![self.name.to_string(), self.settings.url.worker_name()],
        };
        Ok(socket.join(member, self.worker_table.clock))
    }

    fn standard(&self, endpoint: &str) -> Result<SourceHandle, String> {
        let mut spec = SseSpec::new(Arc::clone(self.name), parsed::<SseEndpoint>(endpoint)?);
        if let Some(token) = self.token()? {
            spec = spec.bearer(&token).map_err(|_| {
                "kv_events.token_file: the token cannot stand in a header".to_owned()
            })?;
        }
        spec.settings = self.settings.source_settings();
        self.claim(endpoint)?;
        let sink = StandardSink::new(self.scope(None), Arc::clone(&self.worker_table.index));
        Ok(SseSource::spawn(
            spec,
            Box::new(sink),
            self.worker_table.clock,
        ))
    }

    /// Returns the scope of envelopes; `rank` is that of events that name none.
    fn scope(&self, rank: Option<u32>) -> StandardSinkSpec {
        StandardSinkSpec {
            id: self.id,
            registration: StreamKey {
                model: Some(Arc::clone(self.model)),
                block_size: self.settings.block_size.map(kv_blocks::BlockSize::tokens),
                dp_rank: rank,
                ..StreamKey::default()
            },
            scheme: self.settings.scheme,
        }
    }

    /// Follows a store beside the engine, whose blocks count for each rank.
    fn store(&self, ranks: u32, endpoint: &str) -> Result<SourceHandle, String> {
        let fan_out = FanOut::new(Arc::clone(&self.worker_table.index));
        for rank in 0..ranks {
            fan_out.add_with_envelopes(self.target(rank), self.scope(Some(rank)));
        }
        let mut spec = SourceSpec::new(
            self.target(0),
            Arc::clone(self.name),
            Arc::clone(self.model),
            parsed::<Endpoint>(endpoint)?,
        );
        spec.settings = SourceSettings {
            format: Codec::Mooncake,
            ..self.settings.source_settings()
        };
        let clock = self.worker_table.clock;
        Ok(ZmqSource::spawn_into(spec, Arc::new(fan_out), clock))
    }

    fn polled(&self, endpoint: &str) -> Result<SourceHandle, String> {
        self.claim(endpoint)?;
        let settings = self.settings;
        let mut spec = PollSpec::new(
            self.id,
            Arc::clone(self.name),
            Arc::clone(self.model),
            settings.url.clone(),
        );
        if let Some(key) = &settings.api_key {
            let value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
            let mut value =
                value.map_err(|_| "the worker's api_key cannot stand in a header".to_owned())?;
            value.set_sensitive(true);
            spec.authorization = Some(value);
        }
        spec.block_size = settings.block_size.unwrap_or(spec.block_size);
        spec.settings = settings.source_settings();
        Ok(PollSource::spawn(
            spec,
            Arc::clone(&self.worker_table.index),
            self.worker_table.clock,
        ))
    }

    #[cfg(feature = "nats")]
    fn nats(&self, rank: DpRank, endpoint: &str) -> Result<SourceHandle, String> {
        let subject = parsed::<event_sources::NatsEndpoint>(endpoint)?;
        let target = self.target(rank.0);
        let mut spec = event_sources::NatsSpec::new(
            target,
            Arc::clone(self.name),
            Arc::clone(self.model),
            subject,
        );
        spec.replay = self.settings.wants_replay();
        spec.defaults = self.defaults();
        spec.resume = self.resume(rank.0);
        spec.credentials = self.token()?.as_deref().map(parsed).transpose()?;
        spec.topic = self.settings.topic().unwrap_or_default().to_owned();
        spec.settings = self.settings.source_settings();
        self.claim(endpoint)?;
        Ok(event_sources::NatsSource::spawn(
            spec,
            Arc::clone(&self.worker_table.index),
            self.worker_table.clock,
        ))
    }

    #[cfg(not(feature = "nats"))]
    fn nats(&self, _: DpRank, _: &str) -> Result<SourceHandle, String> {
        Err("this program was built without NATS: build it with the feature `nats`".to_owned())
    }

    /// Reads the content of `kv_events.token_file`, if that is set. Read at each start of a stream:
    /// the token may be renewed.
    fn token(&self) -> Result<Option<String>, String> {
        let Some(path) = &self.settings.own.token_file else {
            return Ok(None);
        };
        let token = read_token(path)
            .map_err(|why| format!("kv_events.token_file {}: {why}", path.display()))?;
        Ok(Some(token))
    }
}

fn read_token(path: &Path) -> Result<String, String> {
    let size = std::fs::metadata(path)
        .map_err(|error| error.to_string())?
        .len();
    if size > LONGEST_TOKEN {
        return Err(format!(
            "{size} bytes: expected a token of at most {LONGEST_TOKEN}"
        ));
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let token = text.trim();
    if token.is_empty() {
        Err("it is empty: expected a token".to_owned())
    } else {
        Ok(token.to_owned())
    }
}

fn parsed<T: FromStr<Err: ToString>>(endpoint: &str) -> Result<T, String> {
    T::from_str(endpoint).map_err(|error| error.to_string())
}
