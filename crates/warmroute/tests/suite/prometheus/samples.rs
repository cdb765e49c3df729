//! The eleven queries against traffic with known figures.

use contract_id::contract;

use super::{
    queries,
    server::{Prometheus, Series, patiently},
    traffic::{SentRequests, TrafficFixture},
};
use crate::{
    harness::{Page, RawClient},
    redis_server::RedisServer,
};

/// The result of a query and its expectation.
struct QueryAnswers<'a> {
    prometheus: &'a Prometheus,
    time: f64,
    sent: &'a SentRequests,
    /// By the router's own page: `get`s of up to this many seconds, counted from before the first
    /// scrape and from after it. Prometheus counts a value in between.
    gets: [Vec<(f64, f64)>; 2],
    /// The bound of the bucket of the slowest `get` since the router started.
    slowest_get: f64,
}

#[test]
#[contract("CK66", "CK67", "CK69", "CK70", "CK71", "CK72")]
fn the_eleven_queries_run_unchanged_and_match_the_traffic() {
    test_programs::require!(RedisServer, Prometheus);
    let redis = RedisServer::start();
    let fixture = TrafficFixture::start(&redis);
    let first = gets_by_time(&page(&fixture));
    let prometheus = Prometheus::scraping(&fixture.router().admin(), "");
    // Before any traffic, every family is present with 0.
    prometheus.scraped(2);
    before_any_traffic(&prometheus);
    let before = gets_by_time(&page(&fixture));

    let mut sent = fixture.traffic();
    let in_flight = fixture.two_in_flight(&mut sent);
    patiently("the requests in flight", || {
        let load: Vec<f64> = prometheus
            .query(queries::BACKEND_LOAD)
            .iter()
            .map(|series| series.value)
            .collect();
        (load.len() == 2 && load.iter().sum::<f64>() == 2.0).then_some(())
    });
    drop(in_flight);
    let total = (sent.not_by_cache() + sent.overlaps.len()) as f64;
    patiently("the last requests to be scraped", || {
        let decided = prometheus.number("sum(continuum_kv_index_routing_decisions_total)")?;
        assert!(decided <= total, "{decided} of {sent:?}");
        let idle = prometheus.number("sum(continuum_prefix_routing_backend_distribution)")? == 0.0;
        (decided == total && idle).then_some(())
    });
    let now = gets_by_time(&page(&fixture));
    let all = now.last().expect("a histogram has buckets").1;
    let slowest_get = now
        .iter()
        .find(|(_, count)| *count == all)
        .expect("the last has all")
        .0;
    let gets = [first, before].map(|old| {
        now.iter()
            .zip(old)
            .map(|(all, old)| (all.0, all.1 - old.1))
            .collect()
    });
    let answers = QueryAnswers {
        prometheus: &prometheus,
        time: prometheus.time(),
        sent: &sent,
        gets,
        slowest_get,
    };
    answers.of_prefix_routing();
    answers.of_redis();
    answers.of_the_index();
    if queries::has_response_cache() {
        answers.of_the_response_cache();
    }
    assert!(
        prometheus
            .promtool(queries::KV_AWARE_RATE)
            .contains("decision=\"kv_aware\""),
        "as operators ask it"
    );
}

/// Every query that is no alert gives data at once; a ratio without data is NaN.
fn before_any_traffic(prometheus: &Prometheus) {
    for query in queries::ALL {
        let found = prometheus.query(query);
        if queries::WITHOUT_FAMILIES_YET.contains(&query) {
            assert!(
                found.is_empty(),
                "it has its families now: take it off the list of those without\n{query}"
            );
        } else if [queries::FALLBACK_ACTIVE, queries::CONSUMER_GONE].contains(&query) {
            assert!(found.is_empty(), "nothing is wrong: {found:?}");
        } else {
            assert!(!found.is_empty(), "no data for\n{query}");
            // The router has checked whether Redis is up.
            let zero = query != queries::REDIS_GET_P99;
            assert!(
                !zero
                    || found
                        .iter()
                        .all(|series| series.value == 0.0 || series.value.is_nan()),
                "{query}: {found:?}"
            );
        }
    }
}

impl QueryAnswers<'_> {
    fn all(&self, query: &str) -> Vec<Series> {
        self.prometheus.query_at(query, self.time)
    }

    fn one(&self, query: &str) -> Series {
        let found = self.all(query);
        assert_eq!(found.len(), 1, "{query}: {found:?}");
        found[0].clone()
    }

    /// The counter is exact, and its rate over five minutes is that of this many events: Prometheus
    /// extrapolates it by up to the time since the last scrape.
    fn counted(&self, series: &str, times: usize) {
        let times = times as f64;
        assert_eq!(self.one(series).value, times, "{series}: {:?}", self.sent);
        let rate = self.one(&format!("rate({series}[5m])")).value * 300.0;
        assert!(
            (0.999 * times..=1.5 * times).contains(&rate),
            "{series}: {rate} of {times}"
        );
    }

    fn of_prefix_routing(&self) {
        for (strategy, times) in [
            ("prefix_hash", self.sent.owner),
            ("overflow", self.sent.overflow),
            ("fallback", self.sent.keyless),
        ] {
            self.counted(
                &format!("continuum_prefix_routing_requests_total{{strategy=\"{strategy}\"}}"),
                times,
            );
        }
        // Both sides of the division have the label, so the query divides the overflows by
        // themselves.
        let overflow = self.one(queries::OVERFLOW_RATE);
        assert_eq!(
            (overflow.label("strategy"), overflow.value),
            ("overflow", 1.0)
        );
        let load = self.all(queries::BACKEND_LOAD);
        assert_eq!(
            load.iter()
                .map(|series| (series.label("backend"), series.value))
                .collect::<Vec<_>>(),
            [("a", 0.0), ("b", 0.0)]
        );
    }

    fn of_redis(&self) {
        let p99 = self.one(queries::REDIS_GET_P99).value;
        let ranges = self.gets.each_ref().map(|gets| {
            let all = gets.last().expect("a histogram has buckets").1;
            assert!(
                all >= self.sent.beginnings as f64,
                "{all} of {:?}",
                self.sent
            );
            let below = gets
                .iter()
                .take_while(|(_, count)| *count < 0.99 * all)
                .last();
            below.map_or(0.0, |(bound, _)| *bound)
        });
        // `rate` extrapolates each bucket towards the first scrape separately: a slow `get` before
        // it weighs more than one.
        let range = (ranges[0].min(ranges[1]), self.slowest_get);
        assert!(range.0 <= p99 && p99 <= range.1, "{p99} lies in {range:?}");
        let mut errors: Vec<(String, f64)> = self
            .all(queries::REDIS_ERROR_RATE)
            .iter()
            .map(|series| (series.label("type").to_owned(), series.value))
            .collect();
        errors.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let none = ["connection", "other", "timeout"].map(|kind| (kind.to_owned(), 0.0));
        assert_eq!(errors, none);
        assert!(self.all(queries::FALLBACK_ACTIVE).is_empty());
    }

    fn of_the_index(&self) {
        for (decision, times) in [
            ("kv_aware", self.sent.overlaps.len()),
            ("fallback", self.sent.not_by_cache()),
        ] {
            self.counted(
                &format!("continuum_kv_index_routing_decisions_total{{decision=\"{decision}\"}}"),
                times,
            );
        }
        let by_caches = self.one(queries::KV_AWARE_RATE);
        assert_eq!(
            (by_caches.label("decision"), by_caches.value),
            ("kv_aware", 1.0)
        );
        let dropped = self.all(queries::EVENT_DROP_RATE);
        let mut dropped: Vec<(&str, f64)> = dropped
            .iter()
            .map(|series| (series.label("backend"), series.value))
            .collect();
        dropped.sort_unstable_by_key(|(backend, _)| *backend);
        assert_eq!(dropped, [("a", 0.0), ("b", 0.0)]);
        let (median, expected) = (
            self.one(queries::OVERLAP_P50).value,
            tenths_median(&self.sent.overlaps),
        );
        assert!(
            (median - expected).abs() < 1e-6,
            "{median}, not {expected}: {:?}",
            self.sent
        );
        assert!(self.all(queries::CONSUMER_GONE).is_empty());
    }

    fn of_the_response_cache(&self) {
        for (result, times) in [
            ("hit", self.sent.hits),
            ("miss", self.sent.misses),
            ("skip", self.sent.skips),
        ] {
            self.counted(
                &format!("continuum_response_cache_requests_total{{result=\"{result}\"}}"),
                times,
            );
        }
        // As with overflows, the divisor has the same labels.
        let hits = self.one(queries::CACHE_HIT_RATE);
        assert_eq!((hits.label("result"), hits.value), ("hit", 1.0));
        let skips = self.one(queries::CACHE_BYPASS_RATE).value * 300.0;
        assert!(
            skips >= 0.999 * self.sent.skips as f64,
            "{skips} of {:?}",
            self.sent
        );
    }
}

fn page(fixture: &TrafficFixture) -> Page {
    Page::read(&RawClient::get(&fixture.router().admin(), "/metrics").text())
}

/// The buckets of the duration of `get`s.
fn gets_by_time(page: &Page) -> Vec<(f64, f64)> {
    let buckets = page.of("continuum_cache_redis_latency_seconds_bucket");
    let of_get = buckets.filter(|sample| sample.labels["operation"] == "get");
    of_get
        .map(|sample| {
            (
                sample.labels["le"].parse().unwrap_or(f64::INFINITY),
                sample.value,
            )
        })
        .collect()
}

/// The median from a histogram with buckets of tenths.
fn tenths_median(values: &[f64]) -> f64 {
    let rank = values.len() as f64 / 2.0;
    let mut below = 0.0;
    for tenth in 1..=10 {
        let (from, to) = (f64::from(tenth - 1) / 10.0, f64::from(tenth) / 10.0);
        let within = values
            .iter()
            .filter(|value| (from..=to).contains(*value) && **value != from)
            .count() as f64;
        if within > 0.0 && below + within >= rank {
            return from + (to - from) * (rank - below) / within;
        }
        below += within;
    }
    panic!("no median of {values:?}")
}
