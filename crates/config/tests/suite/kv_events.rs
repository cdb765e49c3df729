//! The sources of KV events, and the prefix view.

use std::time::Duration;

use config::EventSource;
use contract_id::contract;
use prefix_view::{Offloading, PrefixHashKind};
use routing::OverlapMeasure;

use crate::sources::{lines, load_all, problem, settings};

#[test]
#[contract("CK40", "CK54", "CK56")]
fn the_prefix_view_is_off_and_in_memory_by_default() {
    let view = settings("").kv_cache_index;
    assert!(!view.enabled);
    assert_eq!(view.offloading, Offloading::Off);
    assert!(view.event_sources.is_empty());
    assert!(
        settings("kv_cache_index: {enabled: true, backend: memory}")
            .kv_cache_index
            .enabled
    );

    let offloading = |text| {
        settings(&format!(
            "kv_cache_index: {{storage_offloading: {{{text}}}}}"
        ))
        .kv_cache_index
        .offloading
    };
    let on = |treat_eviction_as_offload| Offloading::On {
        treat_eviction_as_offload,
    };
    assert_eq!(offloading("enabled: true"), on(true));
    assert_eq!(
        offloading("enabled: true, treat_eviction_as_offload: false"),
        on(false)
    );
    assert_eq!(
        offloading("enabled: false, treat_eviction_as_offload: true"),
        Offloading::Off
    );
}

#[test]
#[contract("CK41")]
fn prefix_view_bounds_outside_their_range_are_rejected() {
    let bounds = |text: &str| {
        let view = settings(text).kv_cache_index;
        (view.max_entries.get(), view.entry_ttl.as_secs())
    };
    assert_eq!(bounds(""), (100_000, 600));
    assert_eq!(
        bounds("kv_cache_index: {max_entries: 100, entry_ttl_seconds: 1}"),
        (100, 1)
    );
    assert_eq!(
        bounds("kv_cache_index: {max_entries: 10000000, entry_ttl_seconds: 86400}"),
        (10_000_000, 86_400)
    );
    for (text, expected) in [
        ("max_entries: 99", "a whole number from 100 to 10000000"),
        (
            "max_entries: 10000001",
            "a whole number from 100 to 10000000",
        ),
        (
            "entry_ttl_seconds: 0",
            "a whole number from 1 to 86400 (in s), or a duration such as 86400s",
        ),
        (
            "entry_ttl_seconds: 86401",
            "a whole number from 1 to 86400 (in s), or a duration such as 86400s",
        ),
    ] {
        let found = problem(&format!("kv_cache_index: {{{text}}}"));
        assert_eq!(
            found.path,
            format!(
                "kv_cache_index.{}",
                text.split(':').next().unwrap_or_default()
            )
        );
        assert_eq!(found.expected.as_deref(), Some(expected), "{found}");
    }
}

#[test]
#[contract("CK1", "CK2", "CK3", "CK4", "CK5", "CK16", "A12")]
fn the_ring_is_off_by_default_and_its_numbers_have_ranges() {
    let all = settings("");
    let ring = &all.prefix_routing;
    assert_eq!(
        (ring.enabled, ring.max_prefix_length, ring.virtual_nodes),
        (false, 1024, 150)
    );
    assert!((ring.load_factor_epsilon - 0.25).abs() < 1e-9);
    assert_eq!(
        (
            all.routing.policy().as_str(),
            all.routing.hash_seed_of_rings
        ),
        ("warm", 0)
    );
    assert!(!ring.anthropic_cache_control_injection && !ring.strip_volatile_prefix);
    let on = settings(
        "prefix_routing: {anthropic_cache_control_injection: true, strip_volatile_prefix: true}",
    );
    assert!(
        on.prefix_routing.anthropic_cache_control_injection
            && on.prefix_routing.strip_volatile_prefix
    );

    let policy = |text: &str| settings(text).routing.policy().as_str();
    assert_eq!(policy("prefix_routing: {enabled: true}"), "continuum");
    assert_eq!(policy("kv_cache_index: {enabled: true}"), "continuum");
    assert_eq!(
        policy("prefix_routing: {enabled: true}\nrouting: {policy: random}"),
        "random"
    );
    for spelling in ["PrefixAwareHash", "prefix_aware_hash", "prefix-hash"] {
        assert_eq!(
            policy(&format!("routing: {{policy: {spelling}}}")),
            "prefix_hash"
        );
    }
    for (key, good, bad) in [
        ("load_factor_epsilon", ["0.01", "10.0"], ["0.009", "10.1"]),
        ("virtual_nodes", ["1", "10000"], ["0", "10001"]),
        ("max_prefix_length", ["1", "1048576"], ["0", "1048577"]),
    ] {
        for value in good {
            settings(&format!("prefix_routing: {{{key}: {value}}}"));
        }
        for value in bad {
            assert_eq!(
                problem(&format!("prefix_routing: {{{key}: {value}}}")).path,
                format!("prefix_routing.{key}")
            );
        }
    }
}

#[test]
#[contract("CK59", "CK60", "CK62")]
fn score_weights_sum_to_one_within_a_millionth() {
    let scoring = |text: &str| {
        settings(&format!("kv_cache_index: {{scoring: {{{text}}}}}"))
            .kv_cache_index
            .scoring
    };
    let usual = scoring("");
    assert_eq!(
        (usual.overlap_weight, usual.load_weight, usual.health_weight),
        (0.6, 0.3, 0.1)
    );
    assert_eq!(
        (
            usual.min_overlap_threshold,
            usual.gpu_tier_weight,
            usual.storage_tier_weight
        ),
        (0.3, 1.0, 0.6)
    );
    assert_eq!(
        (
            usual.overlap_measure,
            scoring("overlap_measure: relative").overlap_measure
        ),
        (OverlapMeasure::PromptFraction, OverlapMeasure::Relative)
    );
    for load in ["0.3", "0.3000009", "0.2999991"] {
        scoring(&format!("load_weight: {load}"));
    }
    scoring(
        "overlap_weight: 0.5, load_weight: 0.5, health_weight: 0.0, gpu_tier_weight: 0.0, storage_tier_weight: 1.0",
    );

    let refused =
        |text: &str| problem(&format!("kv_cache_index: {{scoring: {{{text}}}}}")).to_string();
    for load in ["0.300002", "0.299998", "0.0"] {
        assert!(
            refused(&format!("load_weight: {load}")).contains("expected weights that make 1"),
            "{load}"
        );
    }
    assert_eq!(
        refused("load_weight: 0.5"),
        "warmroute.yaml: line 1, column 41: kv_cache_index.scoring.load_weight: overlap_weight, load_weight and health_weight \
         make 1.200000: expected weights that make 1"
    );
    assert!(refused("overlap_weight: 1.5").contains("expected a number from 0 to 1"));
    assert!(refused("storage_tier_weight: -0.1").contains("expected a number from 0 to 1"));
}

#[test]
#[contract("CK42")]
fn a_prefix_stream_belongs_to_a_worker_and_has_one_of_four_schemes() {
    let workers = "workers: [\"w1=http://a:1\", \"http://b:1\"]\n";
    let view = settings(&format!(
        "{workers}kv_cache_index:\n  enabled: true\n  event_sources:\n    - {{backend_name: w1, endpoint: \"http://a:1/v1/kv_events\"}}\n    - {{backend_name: \"b:1\", endpoint: \"wss://b/kv\", reconnect_interval_ms: 100, prefix_hash_kind: sequence_hash}}\n"
    ))
    .kv_cache_index;
    let [first, second] = &view.event_sources[..] else {
        panic!("{view:?}")
    };
    assert_eq!(
        (first.backend_name.as_str(), first.endpoint.as_str()),
        ("w1", "http://a:1/v1/kv_events")
    );
    assert_eq!(
        (first.reconnect_interval, first.prefix_hash_kind),
        (Duration::from_secs(5), PrefixHashKind::PrefixKey)
    );
    assert_eq!(second.backend_name, "b:1");
    assert_eq!(
        (second.reconnect_interval, second.prefix_hash_kind),
        (Duration::from_millis(100), PrefixHashKind::SequenceHash)
    );
    for endpoint in ["https://a/kv", "ws://a:1/"] {
        settings(&format!(
            "{workers}kv_cache_index: {{event_sources: [{{backend_name: w1, endpoint: \"{endpoint}\"}}]}}"
        ));
    }

    let refused = |entry: &str| {
        problem(&format!(
            "{workers}kv_cache_index: {{event_sources: [{{{entry}}}]}}"
        ))
    };
    let unknown = refused("backend_name: w11, endpoint: \"http://a:1/\"");
    assert_eq!(
        unknown.to_string(),
        "warmroute.yaml: line 2, column 49: kv_cache_index.event_sources[0].backend_name: no worker is called `w11`: expected \
         the name of a worker: w1, b:1; did you mean `w1`?"
    );
    for (entry, key) in [
        ("backend_name: w1", "endpoint"),
        ("endpoint: \"http://a:1/\"", "backend_name"),
        ("backend_name: w1, endpoint: \"ftp://a:1/\"", "endpoint"),
        ("backend_name: w1, endpoint: \"tcp://a:1\"", "endpoint"),
        ("backend_name: w1, endpoint: \"http:///kv\"", "endpoint"),
        (
            "backend_name: w1, endpoint: \"http://a:1/\", reconnect_interval_ms: 0",
            "reconnect_interval_ms",
        ),
    ] {
        assert_eq!(
            refused(entry).path,
            format!("kv_cache_index.event_sources[0].{key}"),
            "{entry}"
        );
    }
}

#[test]
fn the_kind_of_a_workers_stream_follows_from_its_endpoint_unless_configured() {
    let source = |events: &str| {
        let settings = settings(&format!(
            "workers: [{{url: \"http://h:1\", kv_events: {{{events}}}}}]"
        ));
        settings.workers[0].kv_events.source
    };
    for (events, expected) in [
        ("", EventSource::Auto),
        ("endpoint: \"tcp://h:5557\"", EventSource::Auto),
        ("endpoint: \"ipc:///run/kv\"", EventSource::Auto),
        (
            "endpoint: \"http://h:9191/v1/kv_events?format=rfc1527\"",
            EventSource::Sse,
        ),
        ("endpoint: \"https://h/kv\"", EventSource::Sse),
        ("endpoint: \"ws://h/kv\"", EventSource::Ws),
        ("endpoint: \"wss://h/kv\", source: ws", EventSource::Ws),
        ("endpoint: \"nats://h:4222/kv.w1\"", EventSource::Nats),
        ("endpoint: \"tls://h:4222/kv.w1\"", EventSource::Nats),
        ("source: poll", EventSource::Poll),
        ("source: none, endpoint: \"http://h/kv\"", EventSource::None),
        ("source: zmq", EventSource::Zmq),
        (
            "source: none, bind: true, replay_endpoint: \"tcp://h:5558\"",
            EventSource::None,
        ),
        ("endpoint: \"tcp://*:5557\", bind: true", EventSource::Auto),
    ] {
        assert_eq!(source(events), expected, "{events}");
    }
}

#[test]
fn a_stream_kind_that_does_not_fit_its_endpoint_is_rejected_with_those_that_fit() {
    for (events, message) in [
        (
            "source: sse",
            "workers[0].kv_events.endpoint: source `sse` has no endpoint: expected http:// or https://...",
        ),
        (
            "source: nats",
            "workers[0].kv_events.endpoint: source `nats` has no endpoint: expected nats:// or tls://...",
        ),
        (
            "source: zmq, endpoint: \"http://h/kv\"",
            "workers[0].kv_events.endpoint: http:// is no place for source `zmq`: expected one of tcp://, ipc://",
        ),
        (
            "source: poll, endpoint: \"http://h:8000\"",
            "workers[0].kv_events.endpoint: http:// is no place for source `poll`: expected no endpoint: the worker's own URL \
             is asked",
        ),
        (
            "bind: true",
            "workers[0].kv_events.bind: there is nothing to listen at: expected an endpoint with tcp:// or ipc://, or `bind: \
             false`",
        ),
        (
            "endpoint: \"ws://h/kv\", replay_endpoint: \"tcp://h:5558\"",
            "workers[0].kv_events.replay_endpoint: source `auto` is never asked for history there: expected this key left out",
        ),
    ] {
        let text = format!("workers: [{{url: \"http://h:1\", kv_events: {{{events}}}}}]");
        let problems = load_all(&text, &[], &[]).expect_err("it does not fit");
        assert!(
            problems.len() == 1 && problems[0].to_string().ends_with(message),
            "{}",
            lines(&problems)
        );
    }
}
