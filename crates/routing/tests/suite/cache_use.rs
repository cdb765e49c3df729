//! The cache use of a decision, and its metrics.

use std::{sync::Arc, time::Duration};

use contract_id::contract;
use kv_blocks::{Moment, Tier, WorkerId};
use routing::{CacheUse, Decision, KvDecisionCounters, Pin, Policy, PrefixHolder};

use crate::fleet::{TestFleet, TestRequest, test_request, tokens, with_prefix};

const NOW: Moment = Moment::START;

/// A prompt of 160 tokens of which w1 holds `tokens_held`, known from a prefix stream.
fn cached_on_w1(tokens_cached: u32) -> TestRequest {
    let holder = PrefixHolder {
        worker: Arc::from("w1"),
        tokens: tokens_cached,
        hot: true,
    };
    TestRequest {
        prefix_holders: Some(vec![holder]),
        affinity: with_prefix(7).affinity,
        ..test_request(tokens(1, 10))
    }
}

fn decided(policy: Policy, request: &TestRequest) -> Decision {
    TestFleet::with(3, policy)
        .preview(NOW, request)
        .expect("a target is eligible")
}

#[test]
#[contract("CK71")]
fn a_decision_by_score_reports_the_cached_part_of_the_prompt() {
    for policy in [Policy::Composite, Policy::Continuum] {
        let use_of = |cached| decided(policy, &cached_on_w1(cached)).cache_use;
        assert_eq!(
            use_of(80),
            Some(CacheUse::Decided { overlap: 0.5 }),
            "{policy:?}"
        );
        assert_eq!(use_of(160), Some(CacheUse::Decided { overlap: 1.0 }));
        assert_eq!(
            use_of(4_000),
            Some(CacheUse::Decided { overlap: 1.0 }),
            "no more than all of it"
        );
        assert_eq!(use_of(16), Some(CacheUse::Fallback), "below the threshold");
    }
}

#[test]
#[contract("CK71")]
fn block_based_policies_report_the_same_from_the_block_index() {
    for policy in [
        Policy::Warm,
        Policy::KvAware,
        Policy::DynamoCost,
        Policy::CacheAware,
    ] {
        let fleet = TestFleet::with(3, policy);
        let prompt = tokens(3, 10);
        let cold = fleet
            .preview(NOW, &test_request(prompt.clone()))
            .expect("a target is eligible");
        assert_eq!(
            cold.cache_use,
            Some(CacheUse::Fallback),
            "{policy:?}: nobody holds anything"
        );
        fleet.stored(2, &prompt[..128], Tier::Device);
        let warm = fleet
            .preview(NOW, &test_request(prompt))
            .expect("a target is eligible");
        assert_eq!(
            (&*warm.winner.name, warm.cache_use),
            ("w2", Some(CacheUse::Decided { overlap: 0.8 })),
            "{policy:?}"
        );
    }
}

#[test]
fn a_decision_without_cache_knowledge_reports_no_cache_use() {
    let pinned = TestRequest {
        pin: Some(Pin {
            worker: WorkerId(1),
            rank: None,
        }),
        ..cached_on_w1(160)
    };
    assert_eq!(decided(Policy::Composite, &pinned).cache_use, None);
    for policy in [Policy::RoundRobin, Policy::PrefixHash, Policy::LeastLoaded] {
        assert_eq!(
            decided(policy, &cached_on_w1(160)).cache_use,
            None,
            "{policy:?}"
        );
    }
}

#[test]
#[contract("CK71", "CK76")]
fn decisions_overlaps_and_queries_are_each_counted_once() {
    let counters = KvDecisionCounters::default();
    for cached in [80, 80, 160, 16] {
        counters.count(&decided(Policy::Composite, &cached_on_w1(cached)));
    }
    counters.count(&decided(Policy::RoundRobin, &cached_on_w1(160)));
    assert_eq!(
        counters.counts().by_decision(),
        [("kv_aware", 3), ("fallback", 1)]
    );
    let overlaps = counters.overlaps();
    let of = |up_to: f64| {
        overlaps
            .ranges
            .iter()
            .find(|(end, _)| *end == up_to)
            .expect("a range")
            .1
    };
    assert_eq!(
        (of(0.5), of(1.0), overlaps.count(), overlaps.sum),
        (2, 1, 3, 2.0)
    );
    counters.record_query(Duration::from_micros(3));
    counters.record_query(Duration::from_secs(1));
    let queries = counters.queries();
    assert_eq!(queries.count(), 2);
    assert_eq!(
        queries
            .ranges
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(end, _)| *end)
            .collect::<Vec<_>>(),
        [4e-6, f64::INFINITY]
    );
}
