//! What a tenant's flood of unique prompts costs another one in the engine's cache.
//!
//! Prompts are token ids, requests are sent one after the other and the engine evicts the least
//! recently used block, so the hits follow from the numbers below and not from times.

use contract_id::contract;
use serde_json::json;

use crate::harness::{RawClient, RawReply, RoutedFleet, RouterQueries as _, eventually};

/// An engine whose cache has 96 blocks of 16 tokens.
const SMALL_CACHE: &[&str] = &["--kv-blocks", "96"];
/// Tokens of a prompt: 8 whole blocks and the beginning of another one.
const PROMPT: u32 = 129;
/// Prompts that tenant `a` repeats; they take 36 blocks.
const WORKING_SET: u32 = 4;
/// Prompts that tenant `b` sends between two rounds of `a`; they would take 135 blocks.
const FLOOD: u32 = 15;
const ROUNDS: u32 = 5;
/// Two prompts of `b` pass at once, and another one after half a minute: 6 in one round would
/// still leave the blocks of `a` in the cache.
const LIMIT: &str = "prompt_tokens_per_minute: 260";

/// What the requests of a run came to.
#[derive(Debug, Default)]
struct FloodReport {
    /// Tokens that the engine found cached for tenant `a`.
    cached: u32,
    /// Prompts of tenant `b` that an engine computed.
    passed: u32,
    /// Prompts of tenant `b` above its limit.
    refused: u32,
}

fn complete(routed: &RoutedFleet, key: &str, topic: u32) -> RawReply {
    // No two topics begin with the same token.
    let ids: Vec<u32> = (0..PROMPT)
        .map(|at| 100 + (topic * 131 + at * 7) % 1_500)
        .collect();
    let body = json!({"model": "sim", "prompt": ids, "max_tokens": 1, "ignore_eos": true});
    let reply = RawClient::post_with(
        &routed.router.data(),
        "/v1/completions",
        &[("x-api-key", key)],
        body.to_string().as_bytes(),
    );
    // The blocks of the request are free again.
    routed.caught_up();
    reply
}

/// Returns the cached tokens that the engine reported.
fn cached_tokens(reply: &RawReply) -> u32 {
    assert_eq!(reply.status, 200, "{}", reply.text());
    let usage = &reply.json()["usage"];
    assert_eq!(usage["prompt_tokens"], PROMPT, "{usage}");
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64();
    let cached = cached.unwrap_or_else(|| panic!("{usage}"));
    u32::try_from(cached).expect("no more than the prompt has")
}

/// Lets tenant `a` repeat its prompts while `b`, with this limit, sends `flood` prompts between two
/// rounds.
fn play(limit: Option<&str>, flood: u32) -> FloodReport {
    let limit = limit.map_or_else(String::new, |limit| format!(", {limit}"));
    let tenants = format!("api_keys: [{{name: a, key: sk-a}}, {{name: b, key: sk-b{limit}}}]\n");
    let routed = RoutedFleet::with(&[SMALL_CACHE], &tenants, &[]);
    let mut report = FloodReport::default();
    let mut unique = WORKING_SET..;
    for _ in 0..ROUNDS {
        for topic in 0..WORKING_SET {
            report.cached += cached_tokens(&complete(&routed, "sk-a", topic));
        }
        for _ in 0..flood {
            let topic = unique.next().expect("there are enough");
            let reply = complete(&routed, "sk-b", topic);
            if reply.status == 429 {
                assert_eq!(reply.error_code(), "token_limited");
                report.refused += 1;
            } else {
                assert_eq!(cached_tokens(&reply), 0, "no prompt is sent twice");
                report.passed += 1;
            }
        }
    }
    check_metrics(&routed, &report);
    report
}

/// Checks that the metrics tell which tenant computes new prompts.
fn check_metrics(routed: &RoutedFleet, report: &FloodReport) {
    let tokens = |tenant: &str, kind: &str| {
        let labels = format!("tenant=\"{tenant}\",kind=\"{kind}\"");
        let router = &routed.router;
        router.metric("warmroute_tenant_tokens_total", &labels)
    };
    let expected = [
        ("a", "prompt", ROUNDS * WORKING_SET * PROMPT),
        ("a", "cached", report.cached),
        ("b", "prompt", report.passed * PROMPT),
        ("b", "cached", 0),
    ];
    eventually("the tokens of all requests to be counted", || {
        expected
            .iter()
            .all(|(tenant, kind, count)| tokens(tenant, kind) == f64::from(*count))
            .then_some(())
    });
}

#[test]
#[contract("F80")]
fn a_limit_on_prompt_tokens_keeps_a_flood_from_costing_another_tenant_a_tenth_of_its_hits() {
    let alone = play(None, 0);
    // All whole blocks of all rounds but the first.
    assert_eq!(
        alone.cached,
        (ROUNDS - 1) * WORKING_SET * (PROMPT - 1),
        "{alone:?}"
    );
    let limited = play(Some(LIMIT), FLOOD);
    assert!(limited.passed > 0 && limited.refused > 0, "{limited:?}");
    assert!(
        10 * limited.cached >= 9 * alone.cached,
        "{limited:?}, alone {alone:?}"
    );
    // The same flood without the limit costs more: the test can fail.
    let unlimited = play(None, FLOOD);
    assert_eq!(unlimited.refused, 0, "{unlimited:?}");
    assert!(
        10 * unlimited.cached < 9 * alone.cached,
        "{unlimited:?}, alone {alone:?}"
    );
}
