//! Every configuration of the reference documents, unchanged.

use config::Problem;
use contract_id::contract;

use crate::sources::{lines, load_all, only};

const FOLDER: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/seed-configs"
);

/// Variables that the documents use without a value.
const ENV: &[(&str, &str)] = &[("S3_ACCESS_KEY", "who"), ("S3_SECRET_KEY", "hush")];

fn files(prefix: &str) -> Vec<(String, String)> {
    let mut found: Vec<_> = std::fs::read_dir(FOLDER)
        .expect("the folder of fixtures")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "yaml"))
        .map(|path| {
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            (name, std::fs::read_to_string(&path).expect("a text"))
        })
        .filter(|(name, _)| name.starts_with(prefix))
        .collect();
    found.sort();
    found
}

/// The backends of the event sources in a text, as flags.
fn backends(text: &str) -> Vec<(&'static str, String, &'static str)> {
    let named = text
        .lines()
        .filter_map(|line| line.split_once("backend_name:"))
        .map(|(_, name)| name);
    named
        .map(|name| name.trim().trim_matches('"'))
        .map(|name| ("workers", format!("{name}=http://{name}:8000"), "-w"))
        .collect()
}

fn load(text: &str) -> Result<config::Settings, Vec<config::Problem>> {
    let flags = backends(text);
    let flags: Vec<_> = flags
        .iter()
        .map(|(path, value, flag)| (*path, value.as_str(), *flag))
        .collect();
    load_all(text, ENV, &flags)
}

#[test]
#[contract("CH31", "CK22", "CK40", "CH14", "CH23")]
fn every_example_of_the_continuum_documents_loads_unchanged() {
    let files = files("continuum-");
    assert_eq!(files.len(), 22, "the documents have 22 blocks");
    for (name, text) in files {
        let settings =
            load(&text).unwrap_or_else(|problems| panic!("{name}:\n{}", lines(&problems)));
        assert!(
            settings.ignored_keys().is_empty(),
            "{name}: {:?}",
            settings.ignored_keys()
        );
    }
}

#[test]
#[contract("CH31")]
fn a_key_without_effect_is_reported_with_its_place_and_the_next_step() {
    let ignored = |text: &str| -> Vec<(String, Option<u64>)> {
        let settings = load(text).unwrap_or_else(|problems| panic!("{}", lines(&problems)));
        let place = |notice: &Problem| (notice.path.clone(), notice.line);
        settings.ignored_keys().iter().map(place).collect()
    };
    let only = |path: &str, line| vec![(path.to_owned(), Some(line))];
    for (text, expected) in [
        (
            "prefix_routing: {enabled: true}\nrouting: {policy: warm}\n",
            only("prefix_routing.enabled", 1),
        ),
        (
            "routing: {policy: random}\nkv_cache_index: {enabled: true}\n",
            only("kv_cache_index.enabled", 2),
        ),
        ("routing: {fallback: random}\n", only("routing.fallback", 1)),
        (
            "routing: {dynamo: {host_cache_hit_weight: 0.5}}\n",
            only("routing.dynamo", 1),
        ),
        (
            "routing: {medium_weights: {cpu: 0.5}}\n",
            only("routing.medium_weights", 1),
        ),
        (
            "replicas: {reset_states: true}\n",
            only("replicas.reset_states", 1),
        ),
        (
            "kv_events: {prediction: {ttl: 9s}}\n",
            only("kv_events.prediction.ttl", 1),
        ),
        (
            "prefix_routing: {enabled: true}\nrouting: {fallback: kv_aware, medium_weights: {cpu: 0.5}}\n",
            vec![],
        ),
        (
            "prefix_routing: {enabled: true}\nrouting: {policy: warm, models: {a: {policy: continuum}}}\n",
            vec![],
        ),
        (
            "prefix_routing: {enabled: false}\nkv_events: {enabled: false, prediction: {ttl: 9s}}\n",
            vec![],
        ),
    ] {
        assert_eq!(ignored(text), expected, "{text}");
    }
    let settings =
        load("prefix_routing: {enabled: true}\nrouting: {policy: warm}\n").expect("loads");
    let notice = settings.ignored_keys()[0].to_string();
    for part in [
        "routing.policy is warm",
        "routing.policy continuum or prefix_hash, or this key left out",
    ] {
        assert!(notice.contains(part), "{notice}");
    }
}

#[test]
fn cache_keys_are_validated() {
    for (text, path) in [
        ("response_cache: {enabled: maybe}", "response_cache.enabled"),
        ("response_cache: {capacity: 0}", "response_cache.capacity"),
        ("response_cache: {backend: disk}", "response_cache.backend"),
        ("response_cache: {l1: {type: s3}}", "response_cache.l1.type"),
        (
            "response_cache: {l2: {endpoint: nowhere}}",
            "response_cache.l2.endpoint",
        ),
        (
            "response_cache: {l2: {acces_key: a}}",
            "response_cache.l2.acces_key",
        ),
        (
            "response_cache: {tiered: {promote: true}}",
            "response_cache.tiered.promote",
        ),
    ] {
        let problem = only(load(text).expect_err(text));
        assert_eq!(problem.path, path, "{problem}");
    }
}

#[test]
fn credentials_of_the_second_tier_are_never_shown() {
    let text = "response_cache: {l2: {access_key: \"${S3_ACCESS_KEY}\", secret_key: \"${S3_SECRET_KEY}\"}}\n";
    let settings = load(text).unwrap_or_else(|problems| panic!("{}", lines(&problems)));
    let idle: String = settings
        .ignored_keys()
        .iter()
        .map(|notice| format!("{notice} {}", notice.value))
        .collect();
    for shown in [settings.to_yaml(), format!("{settings:?}"), idle] {
        assert!(
            !shown.contains("hush") && !shown.contains("\"who\""),
            "{shown}"
        );
    }
    let problem = only(load("response_cache: {l2: {secret_kee: hush}}\n").expect_err("unknown"));
    assert_eq!(problem.value, "***");
}

#[test]
#[contract("V46")]
fn a_file_of_the_other_router_is_rejected_with_the_command_that_converts_it() {
    let files = files("vllm-router-");
    assert_eq!(files.len(), 2, "a file for each shape");
    for (name, text) in files {
        let problem = only(load(&text).expect_err(&name));
        assert_eq!(
            problem.message, "this is a configuration of vLLM Router",
            "{name}"
        );
        assert!(
            problem
                .to_string()
                .contains("`warmroute config convert --from vllm-router warmroute.yaml > "),
            "{name}: {problem}"
        );
        assert_eq!(problem.line, Some(2), "{name}");
    }
}

#[test]
fn a_continuum_file_with_keys_of_its_own_is_rejected_with_the_command_that_converts_it() {
    for (text, line) in [
        (
            "server: {listen: '127.0.0.1:1'}\nselection_strategy: Random\n",
            2,
        ),
        ("load_balancer: {strategy: Random}\n", 1),
        ("server:\n  workers: 4\n  bind_address: '127.0.0.1:1'\n", 3),
    ] {
        let problem = only(load(text).expect_err(text));
        let shown = problem.to_string();
        assert_eq!(problem.line, Some(line), "{shown}");
        assert!(
            shown.contains("a configuration of Continuum Router"),
            "{shown}"
        );
        assert!(
            shown.contains("`warmroute config convert --from continuum warmroute.yaml > "),
            "{shown}"
        );
    }
}

/// Examples of the documents, without their indentation.
const PRINTED: [&str; 3] = [
    "backends:\n    - name: vllm-custom\n    type: vllm\n    url: http://localhost:8000\n    models:\n        - my-model\n    \
     health_check:\n        endpoint: /custom-health          # Primary endpoint\n        method: GET\n",
    "backends:\n    - name: custom-api\n    type: generic\n    url: http://localhost:9000\n    models:\n        - custom-model\n",
    "mode:\ntype: vllm_prefill_decode\nprefill_urls:\n- [\"http://prefill1:8081\", null]\ndecode_urls:\n- \"http://decode1:8083\"\n",
];

#[test]
#[contract("CH31")]
fn an_example_without_indentation_is_rejected_with_a_line() {
    for text in PRINTED {
        let problems = load(text).expect_err(text);
        assert!(
            problems.iter().any(|problem| problem.line.is_some()),
            "{text}\n{}",
            lines(&problems)
        );
    }
    // Every example without its indentation is read or rejected.
    for (name, text) in files("") {
        let flat: String = text
            .lines()
            .map(|line| format!("{}\n", line.trim_start()))
            .collect();
        for text in [
            flat,
            text.replace("  ", " "),
            text.replace('\n', " "),
            text.replace('"', ""),
        ] {
            if let Err(problems) = load(&text) {
                assert!(!problems.is_empty(), "{name}");
            }
        }
    }
}

#[test]
#[contract("CK33")]
fn a_cache_in_redis_needs_the_servers_url() {
    for (text, message) in [
        (
            "{enabled: true, backend: redis}",
            "missing, and `response_cache.backend` is redis",
        ),
        (
            "{enabled: true, backend: tiered, l1: {type: redis}, l2: {endpoint: \"http://s\", bucket: b}}",
            "missing, and `response_cache.l1.type` is redis",
        ),
    ] {
        let problem = only(load(&format!("response_cache: {text}\n")).expect_err(text));
        assert_eq!(
            (problem.path.as_str(), problem.message.as_str()),
            ("response_cache.redis.url", message)
        );
        assert_eq!(problem.line, Some(1));
    }
    for text in [
        "{backend: redis}",
        "{enabled: true, backend: tiered, l2: {endpoint: \"http://s\", bucket: b}}",
        "{enabled: true, backend: redis, redis: {url: \"redis://r\"}}",
    ] {
        load(&format!("response_cache: {text}\n"))
            .unwrap_or_else(|problems| panic!("{text}: {}", lines(&problems)));
    }
    // A missing server is one problem, however many sections need it.
    let both = "response_cache: {enabled: true, backend: redis}\nkv_cache_index: {enabled: true, backend: redis}\n";
    only(load(both).expect_err("no server"));
}
