//! The prefix view (`kv_cache_index`) and the streams that fill it.

mod redis_pool;
mod store;

use std::{sync::Arc, time::Duration};

use config::{KvCacheIndexSection, WorkerEntry};
use event_sources::{
    PrefixSink, SourceHandle, SourceSettings, SseEndpoint, SseSource, SseSpec, StreamReport,
};
use net::{Clock, WorkerUrl};
use parking_lot::Mutex;
use prefix_view::{Holder, PrefixHash, PrefixHashKind, PrefixIndex, ViewSettings};
use prometheus_client::registry::Registry;
use supervision::supervise;
use tokio::task::JoinHandle;

pub use self::redis_pool::RedisPool;
use self::store::{PrefixViewStore, SharedViewParts};
use crate::backend_feeds::{BackendFeeds, is_connected};

/// Longest interval between sweeps of expired prefixes.
const LONGEST_SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// The prefix view and its streams.
#[derive(Debug)]
pub struct PrefixViewService {
    view: PrefixViewStore,
    /// Workers whose streams name blocks by their sequence hashes.
    named_by_blocks: Vec<Arc<str>>,
    /// Taken by the first [`PrefixViewService::stop`].
    sources: Mutex<Vec<SourceHandle>>,
    sweeper: JoinHandle<()>,
}

/// Arguments of [`PrefixViewService::start`].
pub(crate) struct PrefixViewParts<'a> {
    pub(crate) settings: &'a KvCacheIndexSection,
    /// The connections, where the view is in Redis.
    pub(crate) redis: Option<Arc<RedisPool>>,
    /// Bytes of a prompt that the key of its prefix covers.
    pub(crate) max_prefix_length: usize,
    pub(crate) workers: &'a [WorkerEntry],
    /// See [`SourceSettings`].
    pub(crate) stale_after: Duration,
    pub(crate) clock: Clock,
}

impl PrefixViewParts<'_> {
    /// Returns how a stream is followed.
    fn stream_of(&self, source: &config::PrefixEventSource) -> Result<SseSpec, String> {
        let endpoint = source
            .endpoint
            .parse::<SseEndpoint>()
            .map_err(|error| error.to_string())?;
        let key = api_key(self.workers, &source.backend_name, &endpoint);
        let mut spec = SseSpec::new(source.backend_name.as_str(), endpoint);
        if let Some(key) = key {
            spec = spec.bearer(key).map_err(|error| error.to_string())?;
        }
        spec.reconnect_interval = source.reconnect_interval;
        spec.settings = SourceSettings {
            stale_after: self.stale_after,
            ..SourceSettings::default()
        };
        Ok(spec)
    }
}

impl PrefixViewService {
    /// Follows every configured stream; `None` where the section is off.
    pub(crate) fn start(
        parts: PrefixViewParts<'_>,
        registry: &mut Registry,
    ) -> Result<Option<Self>, String> {
        let (settings, clock) = (parts.settings, parts.clock);
        if !settings.enabled {
            return Ok(None);
        }
        let of_view = view_settings(settings, parts.max_prefix_length);
        let view = match &settings.redis {
            None => PrefixViewStore::in_memory(of_view, clock),
            Some(_) => {
                let names = parts.workers.iter().map(|worker| worker.name.as_str());
                let shared = SharedViewParts {
                    pool: parts.redis.clone(),
                    settings: of_view,
                    backends: names.map(Arc::from).collect(),
                    clock,
                };
                PrefixViewStore::in_redis(shared, registry)?
            }
        };
        let mut sources = Vec::new();
        for source in &settings.event_sources {
            let spec = parts.stream_of(source).map_err(|error| {
                format!(
                    "kv_cache_index.event_sources of {}: {error}",
                    source.backend_name
                )
            })?;
            let (backend, kind) = (source.backend_name.as_str(), source.prefix_hash_kind);
            let sink = PrefixSink::new(view.index(), backend, kind);
            sources.push(SseSource::spawn(spec, Box::new(sink), clock));
        }
        let (swept, interval) = (view.index(), sweep_interval(settings.entry_ttl));
        let sweeper = runtime::spawn(supervise("prefix_sweep", move || {
            sweep(Arc::clone(&swept), interval, clock)
        }));
        let by_blocks = settings
            .event_sources
            .iter()
            .filter(|source| source.prefix_hash_kind == PrefixHashKind::SequenceHash);
        let named_by_blocks = by_blocks.map(|source| source.backend_name.as_str().into());
        Ok(Some(Self {
            view,
            named_by_blocks: named_by_blocks.collect(),
            sources: Mutex::new(sources),
            sweeper,
        }))
    }

    /// Returns the index that the streams fill.
    pub fn view(&self) -> Arc<dyn PrefixIndex> {
        self.view.index()
    }

    /// Returns the workers whose streams name the blocks of a prompt by their sequence hashes, not
    /// the beginning of its text by a key.
    pub fn workers_named_by_blocks(&self) -> &[Arc<str>] {
        &self.named_by_blocks
    }

    /// Returns the holders of a prefix if they were read within the last 100 ms: the result that
    /// [`Self::holders`] would give without I/O.
    pub fn cached_holders(&self, prefix: &PrefixHash) -> Option<Arc<[Holder]>> {
        self.view.cached_holders(prefix)
    }

    /// Returns the holders of a prefix, best first, at most 100 ms old. Waits for a bounded time
    /// where the view is shared, and not at all where it is in memory.
    pub async fn holders(&self, prefix: &PrefixHash) -> Arc<[Holder]> {
        self.view.holders(prefix).await
    }

    /// Returns whether the view is shared and its shared store is unreachable.
    pub fn is_cut_off(&self) -> bool {
        self.view.is_cut_off()
    }

    /// Returns the current streams, in the order of the configuration.
    pub fn streams(&self) -> Vec<PrefixStream> {
        self.sources.lock().iter().map(PrefixStream::of).collect()
    }

    /// Adds the counters of its streams to those of their backends.
    pub(crate) fn feed(&self, feeds: &mut BackendFeeds) {
        self.sources
            .lock()
            .iter()
            .for_each(|source| feeds.prefixes(source));
    }

    /// Stops and awaits every stream. A second call returns at once.
    pub(crate) async fn stop(&self) {
        self.sweeper.abort();
        let sources = std::mem::take(&mut *self.sources.lock());
        for source in sources {
            source.stop().await;
        }
        self.view.stop().await;
    }
}

/// One prefix stream.
#[derive(Clone, Debug)]
pub struct PrefixStream {
    /// The report that every stream has.
    pub report: StreamReport,
    /// Whether it is connected.
    pub connected: bool,
    /// Connections after the first.
    pub reconnects: u64,
    /// Messages per second over the last minute.
    pub events_per_second: f64,
}

impl PrefixStream {
    fn of(source: &SourceHandle) -> Self {
        Self {
            report: source.report(),
            connected: is_connected(source.state()),
            reconnects: source.counters().reconnects,
            events_per_second: source.events_per_second(),
        }
    }
}

impl Drop for PrefixViewService {
    fn drop(&mut self) {
        self.sweeper.abort();
    }
}

/// Returns the worker's own key if the stream is on its own listener: no other server may see it.
fn api_key<'a>(
    workers: &'a [WorkerEntry],
    backend: &str,
    endpoint: &SseEndpoint,
) -> Option<&'a str> {
    let worker = workers.iter().find(|worker| worker.name == backend)?;
    let own: WorkerUrl = worker.url.parse().ok()?;
    worker
        .api_key
        .as_ref()
        .filter(|_| own.authority() == endpoint.authority())
        .map(config::Secret::expose)
}

/// Returns the interval between sweeps: an expired entry takes memory for at most another lifetime.
fn sweep_interval(entry_ttl: Duration) -> Duration {
    entry_ttl.min(LONGEST_SWEEP_INTERVAL)
}

async fn sweep(view: Arc<dyn PrefixIndex>, interval: Duration, clock: Clock) {
    loop {
        tokio::time::sleep(interval).await;
        let (view, now) = (Arc::clone(&view), clock.now());
        // Visits every prefix, so it runs on a blocking thread.
        let _ = runtime::spawn_blocking(move || view.cleanup_expired(now)).await;
    }
}

fn view_settings(settings: &KvCacheIndexSection, max_prefix_length: usize) -> ViewSettings {
    ViewSettings {
        max_entries: settings.max_entries,
        entry_ttl: settings.entry_ttl,
        offloading: settings.offloading,
        max_prefix_length: u32::try_from(max_prefix_length).unwrap_or(u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("CK45")]
    fn a_prefix_of_unknown_length_has_the_length_that_its_key_covers() {
        let settings = KvCacheIndexSection::default();
        assert_eq!(view_settings(&settings, 4096).assumed_tokens(), 1024);
        assert_eq!(view_settings(&settings, 256).assumed_tokens(), 64);
    }
}
