//! The record of one worker.

use std::{collections::HashMap, sync::Arc};

use event_sources::{SourceHandle, StreamState};
use kv_blocks::{BlockSize, DpRank, Moment, Target};
use net::Clock;
use tokio::sync::Notify;

use crate::{
    CacheSource, EngineKind, EngineLoad, ModelArtefacts, PrefixCacheCounters, RankView,
    WorkerState, WorkerVerdict, WorkerView,
    health::{HealthSettings, WorkerHealth},
    worker_check::SupervisorConfig,
};

/// Assumed where neither configuration nor engine gives a block size: the default of the most used
/// engine. The verdict reports the assumption.
const ASSUMED_BLOCK: u64 = 16;

/// One worker, as its supervisor updates it.
#[derive(Debug)]
pub(crate) struct WorkerRecord {
    pub(crate) view: Arc<WorkerView>,
    pub(crate) health: WorkerHealth,
    /// By base model id.
    pub(crate) artefacts: HashMap<Arc<str>, Arc<ModelArtefacts>>,
    /// One stream per rank that has its own, or one for all of them.
    pub(crate) streams: Vec<FollowedStream>,
    /// Ranks whose events are distrusted.
    pub(crate) distrusted: Vec<DpRank>,
    /// Its own prefix-cache counters, by rank, as last read.
    pub(crate) prefix_cache: Vec<(DpRank, PrefixCacheCounters)>,
    /// Whether its events are wanted.
    pub(crate) events_wanted: bool,
    pub(crate) outage: Outage,
    /// Whether it has been ready once.
    pub(crate) was_ready: bool,
    pub(crate) wake: Arc<Notify>,
    /// Whether a failed request demands a check before the next one is due.
    pub(crate) recheck_requested: bool,
    /// Whether it gets new requests.
    pub(crate) admission: WorkerAdmission,
    /// When it was last checked, including its model list.
    pub(crate) looked_at: Moment,
}

impl WorkerRecord {
    pub(crate) fn new(view: WorkerView, health: WorkerHealth, events_wanted: bool) -> Self {
        Self {
            view: Arc::new(view),
            health,
            artefacts: HashMap::new(),
            streams: Vec::new(),
            distrusted: Vec::new(),
            prefix_cache: Vec::new(),
            events_wanted,
            outage: Outage::default(),
            was_ready: false,
            wake: Arc::default(),
            recheck_requested: false,
            admission: WorkerAdmission::Open,
            looked_at: Moment::START,
        }
    }

    /// Creates the record of a configured worker, before anything is known of it.
    pub(crate) fn from_config(
        worker: &config::WorkerEntry,
        orders: &SupervisorConfig,
        health: HealthSettings,
        clock: &Clock,
    ) -> Self {
        let assumed = || {
            BlockSize::new(ASSUMED_BLOCK)
                .expect("the assumed block size lies in the range of block sizes")
        };
        let view = WorkerView {
            id: orders.id,
            name: Arc::clone(&orders.name),
            url: orders.client.url().clone(),
            verified: !worker.tls.insecure_skip_verify,
            engine: worker.engine.unwrap_or(EngineKind::Generic),
            version: None,
            state: WorkerState::Unknown,
            since: clock.wall(),
            models: Vec::new(),
            loras: Vec::new(),
            namespace_model: None,
            messages: orders.messages.unwrap_or_default(),
            role: worker.role,
            bootstrap_port: worker.bootstrap_port,
            weight: worker.weight,
            block_size: worker.block_size.unwrap_or_else(assumed),
            block_size_known: worker.block_size.is_some(),
            ranks: vec![RankView::default(); orders.dp_ranks.unwrap_or(1) as usize],
            api_key: worker.api_key.clone(),
            num_blocks: None,
            allow_tiers: worker.allow_tiers.clone(),
            load: EngineLoad::default(),
            ended: 0,
            last_error: None,
        };
        Self::new(view, WorkerHealth::new(health), orders.streams.wanted())
    }

    /// Returns whether the view already reflects the worker's configuration.
    pub(crate) fn is_configured(&self, worker: &config::WorkerEntry) -> bool {
        let view = &self.view;
        view.role == worker.role
            && view.bootstrap_port == worker.bootstrap_port
            && view.weight.to_bits() == worker.weight.to_bits()
            && view.api_key == worker.api_key
            && view.verified != worker.tls.insecure_skip_verify
            && view.allow_tiers == worker.allow_tiers
            && worker
                .block_size
                .is_none_or(|size| view.block_size_known && view.block_size == size)
    }

    /// Applies the worker's configuration. The supervisor requests the facts that must be read
    /// again.
    pub(crate) fn configure(&mut self, worker: &config::WorkerEntry) {
        let view = Arc::make_mut(&mut self.view);
        view.role = worker.role;
        view.bootstrap_port = worker.bootstrap_port;
        view.weight = worker.weight;
        view.api_key.clone_from(&worker.api_key);
        view.verified = !worker.tls.insecure_skip_verify;
        view.allow_tiers.clone_from(&worker.allow_tiers);
        if let Some(size) = worker.block_size {
            (view.block_size, view.block_size_known) = (size, true);
        }
    }

    /// Begins its removal from the configuration: it serves until `until` at most, while no worker
    /// serves in its place.
    pub(crate) fn begin_removal(&mut self, until: Moment) {
        if self.admission == WorkerAdmission::Open {
            self.admission = WorkerAdmission::UntilReplaced(until);
        }
    }

    /// Releases its name to another worker: the two must stay distinguishable.
    pub(crate) fn release_name(&mut self) {
        let number = format!("~{}", self.view.id.0);
        if !self.view.name.ends_with(&number) {
            let view = Arc::make_mut(&mut self.view);
            view.name = format!("{}{number}", view.name).into();
        }
    }

    /// Returns its state for requests: that of its health, unless its admission is closed.
    pub(crate) fn state(&self) -> WorkerState {
        match self.admission {
            WorkerAdmission::Open | WorkerAdmission::UntilReplaced(_) => self.health.state(),
            WorkerAdmission::Closed => WorkerState::Draining,
        }
    }

    /// Records that nothing listens at its address. Returns whether that is news: one outage counts
    /// once, however often it is reported.
    pub(crate) fn record_process_end(&mut self) -> bool {
        let news = !std::mem::replace(&mut self.outage.refused, true);
        if news {
            Arc::make_mut(&mut self.view).ended += 1;
        }
        news
    }

    /// Returns the view of each rank.
    pub(crate) fn rank_views(&self) -> Vec<RankView> {
        let view = |(rank, _)| {
            self.stream_of(rank)
                .map_or_else(RankView::default, |stream| self.rank_view(stream, rank))
        };
        (0u32..)
            .map(DpRank)
            .zip(&self.view.ranks)
            .map(view)
            .collect()
    }

    /// Returns the stream that covers this rank.
    pub(crate) fn stream_of(&self, rank: DpRank) -> Option<&FollowedStream> {
        self.streams
            .iter()
            .find(|stream| stream.ranks.include(rank))
    }

    /// Returns the targets that some of its streams cover.
    pub(crate) fn followed_targets(&self, which: impl Fn(&FollowedStream) -> bool) -> Vec<Target> {
        self.view
            .targets()
            .filter(|target| self.stream_of(target.rank).is_some_and(&which))
            .collect()
    }

    /// Returns a stream's part of the view. While it connects, fetches history or is distrusted,
    /// the cache is predicted; a gap being closed or a silent publisher leaves the known content
    /// usable.
    pub(crate) fn rank_view(&self, stream: &FollowedStream, rank: DpRank) -> RankView {
        let state = stream.source.state();
        let cache = match state {
            _ if self.distrusted.contains(&rank) => CacheSource::Predicted,
            StreamState::Live | StreamState::Gapped | StreamState::Stale => CacheSource::Events,
            StreamState::Connecting | StreamState::Replaying | StreamState::Quarantined => {
                CacheSource::Predicted
            }
        };
        RankView {
            cache,
            stream: Some(state.as_str()),
            replay: stream.replay,
        }
    }

    /// Returns the present verdict.
    pub(crate) fn verdict(&self) -> WorkerVerdict {
        let view = &self.view;
        let worst = view
            .ranks
            .iter()
            .find(|rank| rank.cache == CacheSource::Predicted)
            .or(view.ranks.first());
        let none = if self.events_wanted { "none" } else { "off" };
        WorkerVerdict {
            worker: Arc::clone(&view.name),
            url: view.url.to_string(),
            state: view.state,
            engine: view.engine,
            version: view.version.clone(),
            models: view
                .models
                .iter()
                .map(|model| Arc::clone(&model.id))
                .collect(),
            block_size: view.block_size.tokens(),
            block_size_known: view.block_size_known,
            events: worst.and_then(|rank| rank.stream).unwrap_or(none),
            replay: view.ranks.iter().all(|rank| rank.replay),
            tokenizer: view
                .namespace_model
                .as_ref()
                .and_then(|id| self.artefacts.get(id))
                .map_or("none", |artefacts| artefacts.tokenizer_word()),
            problem: view.last_error.clone(),
        }
    }
}

/// Whether a worker gets new requests, as operators and the configuration decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerAdmission {
    /// Open, while the worker is healthy.
    Open,
    /// Open while no other worker is ready in its place, and until this moment at most: it is no
    /// longer configured.
    UntilReplaced(Moment),
    /// Closed: it finishes running requests.
    Closed,
}

/// Facts about a worker's outage.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outage {
    /// Whether the last contact was a refused connection: the process has ended, and its cache with
    /// it.
    pub(crate) refused: bool,
    /// Whether its part of the index was emptied for this outage.
    pub(crate) cache_forgotten: bool,
}

/// A followed event stream.
#[derive(Debug)]
pub(crate) struct FollowedStream {
    /// The ranks whose caches it covers.
    pub(crate) ranks: RankSelection,
    /// Whether missed events can be replayed.
    pub(crate) replay: bool,
    pub(crate) source: SourceHandle,
}

/// Ranks of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RankSelection {
    One(DpRank),
    All,
}

impl RankSelection {
    pub(crate) fn include(self, rank: DpRank) -> bool {
        self == Self::One(rank) || self == Self::All
    }

    pub(crate) fn first(self) -> DpRank {
        match self {
            Self::One(rank) => rank,
            Self::All => DpRank(0),
        }
    }
}

#[cfg(test)]
impl WorkerRecord {
    /// A worker before its first check.
    pub(crate) fn for_tests(id: kv_blocks::WorkerId, clock: &net::Clock) -> Self {
        let second = std::time::Duration::from_secs(1);
        let health = crate::health::HealthSettings {
            interval: second,
            unhealthy_threshold: 1,
            healthy_threshold: 1,
            warmup_interval: second,
            max_warmup: second,
            knock_first: second,
            knock_longest: second,
            eject_after: 1,
            eject_for: second,
        };
        let view = WorkerView {
            id,
            name: "w1".into(),
            url: "http://127.0.0.1:1".parse().expect("a url"),
            verified: true,
            engine: crate::EngineKind::Generic,
            version: None,
            state: crate::WorkerState::Unknown,
            since: clock.wall(),
            models: Vec::new(),
            loras: Vec::new(),
            namespace_model: None,
            messages: crate::MessagesMode::Translate,
            role: kv_blocks::Role::Unified,
            bootstrap_port: None,
            weight: 1.0,
            block_size: kv_blocks::BlockSize::new(16).expect("a block size"),
            block_size_known: false,
            ranks: vec![RankView::default()],
            api_key: None,
            num_blocks: None,
            allow_tiers: Vec::new(),
            load: crate::EngineLoad::default(),
            ended: 0,
            last_error: None,
        };
        Self::new(view, WorkerHealth::new(health), true)
    }
}
