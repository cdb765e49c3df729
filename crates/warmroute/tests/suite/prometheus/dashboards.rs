//! The shipped dashboards of Grafana.

use std::collections::BTreeSet;

use contract_id::contract;
use serde_json::Value;

use super::server::Prometheus;
use crate::{
    admin_shapes::ONLY_WHEN_IT_HAPPENS,
    harness::{
        Page, RawClient, RoutedFleet, ScriptedEngine, ScriptedReply, chat, chat_message,
        json_reply, streamed,
    },
};

const DASHBOARDS: [(&str, &str); 2] = [
    (
        "overview.json",
        include_str!("../../../../../deploy/grafana/overview.json"),
    ),
    (
        "cache-and-routing.json",
        include_str!("../../../../../deploy/grafana/cache-and-routing.json"),
    ),
];

/// Beginnings of the names of the router's families.
const OURS: [&str; 3] = ["warmroute_", "continuum_", "vllm_router_"];

/// A dashboard, checked to be JSON.
fn dashboard(text: &str) -> Value {
    serde_json::from_str(text).expect("a dashboard is JSON")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// The expressions of a dashboard's panels, as Grafana asks them for all routers.
fn expressions(dashboard: &Value) -> Vec<String> {
    let targets = list(dashboard, "panels")
        .iter()
        .flat_map(|panel| list(panel, "targets"));
    targets
        .map(|target| {
            let expression = target["expr"].as_str().expect("an expression");
            let replaced = [
                ("$__rate_interval", "5m"),
                ("$job", ".*"),
                ("$instance", ".*"),
            ];
            replaced
                .iter()
                .fold(expression.to_owned(), |text, (from, to)| {
                    text.replace(from, to)
                })
        })
        .collect()
}

/// The names in a query that are those of the router's samples.
fn names(query: &str) -> Vec<&str> {
    query
        .split(|it: char| !(it.is_ascii_alphanumeric() || it == '_'))
        .filter(|word| OURS.iter().any(|ours| word.starts_with(ours)))
        .collect()
}

/// A router whose page has the families of all that dashboards show, after two requests.
fn routed() -> (RoutedFleet, ScriptedEngine) {
    let collector = ScriptedEngine::start(ScriptedReply::whole(json_reply("200 OK", "", "")));
    let config = format!("tracing: {{otlp_endpoint: \"{}\"}}\n", collector.url());
    let routed = RoutedFleet::with(&[&[]], &config, &[]);
    routed.chat(&[chat_message("user", "hi")], &[]);
    // Only a stream shows the time of its first token.
    let stream = streamed(chat("sim", "hi", 2));
    let reply = RawClient::chat(&routed.router.data(), &stream).reply();
    assert_eq!(reply.status, 200, "{}", reply.text());
    (routed, collector)
}

#[test]
#[contract("V44")]
fn every_metric_of_the_dashboards_is_on_the_routers_page() {
    let (routed, _collector) = routed();
    let page = Page::read(&RawClient::get(&routed.router.admin(), "/metrics").text());
    let mut samples: BTreeSet<String> = ONLY_WHEN_IT_HAPPENS
        .iter()
        .map(|counter| format!("{counter}_total"))
        .collect();
    for (family, kind) in &page.families {
        let endings: &[&str] = match &**kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        samples.extend(endings.iter().map(|ending| format!("{family}{ending}")));
    }
    for (file, text) in DASHBOARDS {
        let dashboard = dashboard(text);
        let mut queries = expressions(&dashboard);
        assert!(queries.len() > 20, "{file}: {} expressions", queries.len());
        let variables = list(&dashboard["templating"], "list").iter();
        queries.extend(variables.filter_map(|it| it["definition"].as_str().map(str::to_owned)));
        for query in &queries {
            let names = names(query);
            assert!(!names.is_empty(), "{file}: {query}");
            for name in names {
                assert!(samples.contains(name), "{file}: no {name} in {query}");
            }
        }
    }
}

#[test]
#[contract("V44")]
fn every_expression_of_the_dashboards_is_accepted_by_prometheus() {
    test_programs::require!(Prometheus);
    let (routed, _collector) = routed();
    let prometheus = Prometheus::scraping(&routed.router.admin(), "");
    prometheus.scraped(2);
    let mut with_data = 0;
    for (_, text) in DASHBOARDS {
        for query in expressions(&dashboard(text)) {
            with_data += usize::from(!prometheus.query(&query).is_empty());
        }
    }
    // Others show what seldom happens.
    assert!(with_data > 40, "{with_data} expressions have data");
}

#[test]
#[contract("V44")]
fn a_dashboard_has_an_id_of_its_own_and_panels_that_do_not_overlap() {
    let mut ids = BTreeSet::new();
    for (file, text) in DASHBOARDS {
        let dashboard = dashboard(text);
        assert!(ids.insert(dashboard["uid"].to_string()), "{file}");
        let mut taken = BTreeSet::new();
        for panel in list(&dashboard, "panels") {
            let place = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
            for x in place("x")..place("x") + place("w") {
                for y in place("y")..place("y") + place("h") {
                    assert!(x < 24 && taken.insert((x, y)), "{file}: {}", panel["title"]);
                }
            }
        }
    }
}
