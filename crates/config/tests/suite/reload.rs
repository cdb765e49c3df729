//! Settings that a running program adopts on a reload.

use config::ConfigChanges;
use contract_id::contract;

use crate::sources::settings;

const WORKERS: &str =
    "workers: [{name: a, url: 'http://h:1', api_key: one}, {name: b, url: 'http://h:2'}]\n";

#[test]
fn every_changed_key_is_listed_with_those_that_need_a_restart_apart() {
    let old = settings(&format!("{WORKERS}routing: {{policy: random}}\n"));
    let new = settings(
        "workers: [{name: a, url: 'http://h:1', api_key: two, weight: 2}, {name: c, url: 'http://h:3'}]\n\
         routing: {policy: warm}\nserver: {port: 1234, max_body_bytes: 1MiB}\nparity: {window: 60s}\n",
    );
    let changes = ConfigChanges::between(&old, &new);
    let live = [
        "routing.policy",
        "server.max_body_bytes",
        "workers[a].weight",
        "workers[b]",
        "workers[c]",
        "workers[a].api_key",
    ];
    assert_eq!(changes.live, live);
    assert_eq!(
        changes.restart_needed,
        ["parity.window", "server.listen", "server.port"]
    );
    assert_eq!(ConfigChanges::between(&old, &old), ConfigChanges::default());
}

#[test]
#[contract("F68")]
fn after_a_reload_the_displayed_configuration_is_the_one_in_force() {
    let old = settings(WORKERS);
    let new = settings(&format!(
        "{WORKERS}server: {{port: 1, keep_alive: 3s}}\nadmin: {{listen: '127.0.0.1:2'}}\nkv_events: {{memory_budget: 64MiB, \
         stale_after: 9s}}\ndecisions: {{ring_entries: 5}}\nlogging: {{level: debug, format: json}}\n"
    ));
    let taken = new.taken_over(&old, &old);
    let shown = taken.to_json();
    assert_eq!(
        (&shown["server"]["port"], &shown["server"]["keep_alive"]),
        (&"auto".into(), &"3s".into())
    );
    assert_eq!(
        (
            &shown["kv_events"]["memory_budget"],
            &shown["kv_events"]["stale_after"]
        ),
        (&"512MiB".into(), &"9s".into())
    );
    assert_eq!(
        (&shown["logging"]["level"], &shown["logging"]["format"]),
        (&"debug".into(), &"auto".into())
    );
    assert_eq!(taken.server.listen, old.server.listen);
    assert_eq!(taken.kv_events.memory_budget, old.kv_events.memory_budget);
    assert_eq!(taken.decisions, old.decisions);
    let again = ConfigChanges::between(&old, &taken);
    assert_eq!(
        again.restart_needed,
        Vec::<String>::new(),
        "no pending value is shown as in force"
    );
    assert_eq!(
        again.live,
        [
            "kv_events.stale_after",
            "logging.level",
            "server.keep_alive"
        ]
    );
}

#[test]
fn workers_added_at_run_time_are_marked_and_expand_no_variables() {
    let more = [config::MoreWorker {
        origin: "POST /admin/workers".to_owned(),
        text: r#"{"name": "b", "url": "http://h:2", "api_key": "${HOME}"}"#.to_owned(),
    }];
    let load = |left_out: &[String]| {
        config::load(config::ConfigSource {
            name: "f.yaml",
            text: Some("workers: [{name: a, url: 'http://h:1'}, 'c=http://h:3']\n"),
            env: &[("HOME".to_owned(), "/secret".to_owned())],
            own_env: &[],
            overrides: &[],
            left_out,
            more_workers: &more,
            check_url: |url| Ok(url.to_owned()),
        })
        .unwrap_or_else(|problems| panic!("{problems:?}"))
    };
    let all = load(&[]);
    let found: Vec<_> = all
        .workers
        .iter()
        .map(|worker| (worker.name.as_str(), worker.found))
        .collect();
    assert_eq!(found, [("a", false), ("c", false), ("b", true)]);
    assert_eq!(
        all.workers[2].api_key.as_ref().map(config::Secret::expose),
        Some("${HOME}")
    );
    let fewer = load(&["c".to_owned(), "a".to_owned()]);
    assert_eq!(
        fewer
            .workers
            .iter()
            .map(|worker| worker.name.as_str())
            .collect::<Vec<_>>(),
        ["b"]
    );
}

#[test]
fn an_added_worker_with_a_taken_name_is_skipped_and_reported() {
    let found = |text: &str| config::MoreWorker {
        origin: "engines.yaml".to_owned(),
        text: text.to_owned(),
    };
    let more = [
        found(r#"{"name": "a", "url": "http://h:2"}"#),
        found("h3=http://h:3"),
        found(r#"{"url": "http://h:1"}"#),
        found(r#"{"name": "h3", "url": "http://h:4"}"#),
    ];
    let settings = config::load(config::ConfigSource {
        name: "f.yaml",
        text: Some("workers: ['http://h:1', {name: a, url: 'http://h:9'}]\n"),
        env: &[],
        own_env: &[],
        overrides: &[],
        left_out: &[],
        more_workers: &more,
        check_url: |url| Ok(url.trim_start_matches("http://").to_owned()),
    })
    .unwrap_or_else(|problems| panic!("{problems:?}"));
    let workers: Vec<_> = settings
        .workers
        .iter()
        .map(|it| (it.name.as_str(), it.url.as_str(), it.found))
        .collect();
    let own = [("h:1", "http://h:1", false), ("a", "http://h:9", false)];
    assert_eq!(workers, [&own[..], &[("h3", "http://h:3", true)]].concat());
    let told: Vec<String> = settings
        .skipped_workers()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert_eq!(
        told[0],
        "engines.yaml: workers: `a` is the name of another worker: this one is passed over: expected a name of its own"
    );
}
