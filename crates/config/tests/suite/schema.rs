//! The table of settings, its pages and the effective configuration agree.

use serde_json::Value as Json;

use crate::sources::settings;

#[test]
fn the_effective_configuration_round_trips() {
    let text = "server: {port: 8123, keep_alive: 90m}\nworkers: [w=http://h:1]\nmodels: {entries: {a.b: {tokenizer: none}}}\n\
                kv_events: {memory_budget: 1GiB}\nhealth_checks: {recovery_interval: 10ms}\n";
    let first = settings(text);
    let second = settings(&first.to_yaml());
    assert_eq!(first.to_json(), second.to_json());
    assert_eq!(first.to_json()["server"]["listen"], "127.0.0.1:8123");
    assert_eq!(first.to_json()["kv_events"]["memory_budget"], "1GiB");
    assert_eq!(first.to_json()["routing"]["policy"], "warm");
    assert_eq!(first.to_json()["workers"][0]["name"], "w");
}

#[test]
fn the_json_schema_describes_every_default_and_no_key_of_a_later_version() {
    let schema = config::schema();
    assert_eq!(
        schema["properties"]["server"]["properties"]["keep_alive"]["default"],
        "75s"
    );
    assert_eq!(
        schema["properties"]["routing"]["properties"]["overlap_weight"]["maximum"],
        100.0
    );
    assert_eq!(
        schema["properties"]["backends"],
        schema["properties"]["workers"]
    );
    assert!(
        schema["properties"]["kv_events"]["properties"]
            .get("max_events_per_second")
            .is_none()
    );
    let cache = &schema["properties"]["response_cache"]["properties"];
    assert_eq!(
        cache["redis"]["properties"]["fallback_capacity"]["default"],
        1000
    );
    assert_eq!(
        schema["properties"]["decision_log"],
        schema["properties"]["decisions"]["properties"]["log"]
    );
    assert_eq!(
        schema["properties"]["pre_routing_hooks"]["items"]["properties"]["on_error"]["default"],
        "reject"
    );
    assert_eq!(
        schema["properties"]["compat"]["properties"]["headers"]["items"]["enum"][0],
        "vllm-router"
    );
    assert_eq!(cache["redis"]["properties"]["pool_size"]["default"], 8);
    assert_eq!(
        schema["properties"]["api_keys"],
        schema["properties"]["tenants"]["properties"]["api_keys"]
    );
    assert_eq!(
        schema["properties"]["queue"]["properties"]["hold_above"]["default"],
        "25ms"
    );
    let policies = &schema["properties"]["routing"]["properties"]["policy"]["enum"];
    assert!(
        policies
            .as_array()
            .is_some_and(|words| words.contains(&"warm".into()) && words.len() > 5),
        "{policies}"
    );
    assert_eq!(schema["additionalProperties"], Json::Bool(false));
}

/// `WARMROUTE_TEST_WRITE=1` rewrites the page.
#[test]
fn the_reference_page_is_the_one_in_the_repository() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = config::reference_page();
    if std::env::var_os("WARMROUTE_TEST_WRITE").is_some() {
        std::fs::write(path, &page).expect("the docs folder can be written");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == page,
        "docs/configuration.md differs from the table: WARMROUTE_TEST_WRITE=1 cargo test -p config writes it"
    );
}
