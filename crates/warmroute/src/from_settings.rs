//! Converts the configuration to the settings of the router's parts.

mod before_routing;
mod content_routing;
mod model_routing;

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use config::{BlockHashKind, ListenSetting, Settings};
use gateway::{
    Connector, CountLimits, DecisionLogSettings, Disaggregation, ListenerLimits, RequestSettings,
    RetryRules, RewriteSettings, WaitLimits,
};
use kv_blocks::HashScheme;
use kv_index::IndexSettings;
use net::ListenAddr;
use routing::{DecisionLogSection, RoutingSettings};
use tokenization::TokenCacheSettings;

/// Most header fields of a request.
const MAX_HEADERS: usize = 100;
/// Time without progress after which a client that does not read its reply is disconnected.
const CLIENT_STALL: Duration = Duration::from_secs(300);

/// Returns the hash scheme of blocks.
pub(crate) fn scheme(settings: &Settings) -> HashScheme {
    match settings.kv_events.block_hash {
        BlockHashKind::Xxh3 => HashScheme::Xxh3 {
            seed: settings.kv_events.block_hash_seed,
        },
        BlockHashKind::Fnv1a => HashScheme::Fnv1a,
    }
}

/// Returns the settings of the block index.
pub(crate) fn index(settings: &Settings, scheme: HashScheme) -> IndexSettings {
    IndexSettings {
        scheme,
        memory_budget: settings.kv_events.memory_budget,
        prediction_max_blocks: settings.kv_events.prediction.max_blocks,
        unconfirmed_ttl: settings.kv_events.prediction.ttl,
        prune_target_ratio: settings.kv_events.prediction.prune_target_ratio,
        secret: RandomState::new().hash_one("index"),
    }
}

pub(crate) fn decision_log(log: DecisionLogSection) -> DecisionLogSettings {
    DecisionLogSettings {
        path: log.path,
        interval: log.interval,
        chains: log.chains,
        include_request_text: log.include_request_text,
    }
}

/// Returns the settings of the decision.
pub(crate) fn routing(settings: &Settings) -> RoutingSettings {
    RoutingSettings {
        scoring: settings.kv_cache_index.scoring,
        prediction_ttl: settings.kv_events.prediction.ttl,
        queue: settings.queue,
        kept_candidates: settings.decisions.candidates,
        ..RoutingSettings::of(settings.routing.clone(), settings.prefix_routing.clone())
    }
}

pub(crate) fn limits(settings: &Settings) -> ListenerLimits {
    let server = &settings.server;
    ListenerLimits {
        max_head_bytes: server.max_head_bytes,
        max_body_bytes: server.max_body_bytes,
        max_held_bytes: server.max_held_bytes,
        memory_budget: crate::memory_budget::bytes(server.memory_budget),
        counts: CountLimits {
            choices: server.max_choices,
            prompts: server.max_prompts,
            stops: server.max_stop,
        },
        max_headers: MAX_HEADERS,
        max_connections: server
            .max_connections
            .map_or_else(crate::limits::max_connections, |most| {
                usize::try_from(most.get()).unwrap_or(usize::MAX)
            }),
        keep_alive: server.keep_alive,
        head_timeout: server.head_timeout,
        body_timeout: server.body_timeout,
        client_stall: CLIENT_STALL,
        half_close: server.half_close,
        log_requests: settings.logging.requests,
    }
}

pub(crate) fn rules(settings: &Settings, scheme: HashScheme) -> RequestSettings {
    let (request, retry) = (&settings.request, &settings.retry);
    RequestSettings {
        timeout: request.timeout,
        connect_timeout: request.connect_timeout,
        stream_idle: request.stream_idle_timeout,
        stream_total: request.stream_max_duration,
        strict_streams: request.strict_stream_completion,
        retry: RetryRules {
            sends: retry.max_attempts.get(),
            base_delay: retry.base_delay,
            max_delay: retry.max_delay,
            exponential: retry.exponential_backoff,
            jitter: retry.jitter,
            budget_ratio: retry.budget_ratio,
        },
        scheme,
        tokenize_budget: settings.routing.tokenize_budget,
        token_cache: token_cache(settings),
        busy_threshold: settings.routing.busy_threshold,
        engine_priority: settings.queue.engine_priority,
        by_model: model_routing::by_model(&settings.routing),
        reservation_ttl: settings.routing.reservation_ttl,
        max_prefix_bytes: settings.prefix_routing.max_prefix_length,
        // Invalid names were refused with the configuration.
        session_headers: settings
            .routing
            .session
            .headers
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect(),
        disaggregation: disaggregation(settings),
        clusters: settings
            .routing
            .semantic_clusters
            .as_ref()
            .map(content_routing::clusters),
        names: before_routing::names(&settings.models),
        hooks: before_routing::hooks(&settings.hooks),
        headers: before_routing::headers(&settings.compat),
        deduplication: settings.cache.deduplication(),
        model_lists: before_routing::model_lists(settings),
        hedge_after: request.hedge_after,
        shared_prefixes: settings
            .routing
            .shared_prefix_routing
            .map(content_routing::shared_prefixes),
        rewriting: RewriteSettings {
            cache_control: settings.prefix_routing.anthropic_cache_control_injection,
            volatile_prefix: settings.prefix_routing.strip_volatile_prefix,
        },
        waiting: WaitLimits {
            busy: settings.queue.enabled.then_some(settings.queue.wait),
            no_worker: settings.queue.engine_wait_timeout,
        },
    }
}

fn disaggregation(settings: &Settings) -> Disaggregation {
    Disaggregation {
        connector: settings.disaggregation.enabled().then_some(
            match settings.disaggregation.connector {
                config::Connector::Nixl => Connector::Nixl,
                config::Connector::Mooncake => Connector::Mooncake,
                config::Connector::Sglang => Connector::Sglang,
            },
        ),
        uncached_token_threshold: settings.disaggregation.uncached_token_threshold,
        prefill_policy: settings.routing.prefill_policy,
        decode_policy: settings.routing.decode_policy,
    }
}

fn token_cache(settings: &Settings) -> TokenCacheSettings {
    settings
        .routing
        .lmcache
        .as_ref()
        .map_or_else(TokenCacheSettings::default, |lmcache| TokenCacheSettings {
            ttl: lmcache.prompt_cache.ttl,
            capacity: lmcache.prompt_cache.capacity.get(),
        })
}

/// Returns the address of a listener.
pub(crate) fn address(listen: &ListenSetting) -> ListenAddr {
    match listen {
        ListenSetting::Tcp(address) => ListenAddr::tcp(address.ip().to_string(), address.port()),
        ListenSetting::Unix(path) => ListenAddr::unix(path),
    }
}
