//! Both alerts fire while their condition holds, and not otherwise.

use contract_id::contract;

use super::{
    queries,
    rules::ALERTS,
    server::{Prometheus, patiently},
    traffic::TrafficFixture,
};
use crate::redis_server::RedisServer;

const FALLBACK: &str = "WarmrouteCacheFallback";
const CONSUMER: &str = "WarmrouteKvConsumerDisconnected";

/// The shipped rules without `for`, so that they fire at once.
fn without_waits() -> String {
    let lines = ALERTS.lines().map(|line| {
        let indent = &line[..line.len() - line.trim_start().len()];
        if line.trim_start().starts_with("for: ") {
            format!("{indent}for: 0s\n")
        } else {
            format!("{line}\n")
        }
    });
    lines.collect()
}

fn until_firing(prometheus: &Prometheus, expected: &[(&str, &str)]) {
    patiently(&format!("the firing alerts to be {expected:?}"), || {
        let firing = prometheus.firing();
        let firing: Vec<(&str, &str)> = firing
            .iter()
            .map(|(name, backend)| (&**name, &**backend))
            .collect();
        (firing == expected).then_some(())
    });
}

/// The backends with a sample in the result of a query.
fn backends(prometheus: &Prometheus, query: &str) -> Vec<String> {
    prometheus
        .query(query)
        .iter()
        .map(|series| series.label("backend").to_owned())
        .collect()
}

#[test]
#[contract("CK69", "CK70", "CK72")]
fn the_alerts_fire_while_redis_or_a_stream_is_away_and_clear_when_it_is_back() {
    test_programs::require!(RedisServer, Prometheus);
    let mut redis = RedisServer::start();
    let fixture = TrafficFixture::start(&redis);
    let prometheus = Prometheus::scraping(&fixture.router().admin(), &without_waits());
    prometheus.scraped(2);
    until_firing(&prometheus, &[]);

    redis.kill();
    until_firing(&prometheus, &[(FALLBACK, "")]);
    assert_eq!(prometheus.number(queries::FALLBACK_ACTIVE), Some(1.0));
    let failed = prometheus.query(queries::REDIS_ERROR_RATE);
    assert_eq!(failed.len(), 3);
    assert!(
        failed
            .iter()
            .any(|series| series.label("type") == "connection" && series.value > 0.0),
        "{failed:?}"
    );
    assert!(
        backends(&prometheus, queries::CONSUMER_GONE).is_empty(),
        "the streams do not go through Redis"
    );
    redis.start_again();
    until_firing(&prometheus, &[]);
    assert_eq!(prometheus.number(queries::FALLBACK_ACTIVE), None);

    fixture.stream.go_away();
    until_firing(&prometheus, &[(CONSUMER, "b")]);
    assert_eq!(backends(&prometheus, queries::CONSUMER_GONE), ["b"]);
    assert_eq!(prometheus.number(queries::FALLBACK_ACTIVE), None);
    fixture.stream.come_back();
    until_firing(&prometheus, &[]);
    assert!(backends(&prometheus, queries::CONSUMER_GONE).is_empty());
}
