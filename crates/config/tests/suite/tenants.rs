//! Section `tenants`.

use std::sync::Arc;

use ::tenants::{EngineField, EntryRules, KeyDigest, KeyEntry, Scope};
use config::{ConfigChanges, Settings};
use contract_id::contract;

use crate::sources::{self, load_all, problem};

/// SHA-256 of `abc`.
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn settings(text: &str) -> Settings {
    sources::settings(text)
}

#[test]
#[contract("V31", "V32")]
fn an_entry_has_all_documented_keys_and_its_secrets_are_never_shown() {
    let text = format!(
        "api_keys:\n- name: team a\n  key: sk-secret\n  scopes: [chat, overrides]\n  allowed_models: [m, 'llama-*']\n  \
         engine_fields: [priority, chat_template]\n  rate_limit_rps: 2.5\n  max_concurrent: 4\n  expires_at: 2030-01-31T00:00:00Z\n  enabled: false\n  metadata: \
         {{owner: x}}\n- {{name: b, key_sha256: {ABC}}}\n"
    );
    let settings = settings(&text);
    let [a, b] = &settings.tenants.api_keys[..] else {
        panic!("{:?}", settings.tenants);
    };
    assert_eq!(a.scopes, [Scope::Chat, Scope::Overrides]);
    assert_eq!(a.allowed_models, ["m", "llama-*"]);
    let fields = [EngineField::Priority, EngineField::ChatTemplate];
    assert_eq!(a.engine_fields, fields);
    assert_eq!(a.rate_limit_rps, Some(2.5));
    assert_eq!(a.max_concurrent.map(|most| most.get()), Some(4));
    assert!(!a.enabled && a.metadata["owner"] == "x");
    assert_eq!(b.scopes.len(), 6, "all but overrides");
    assert!(!b.scopes.contains(&Scope::Overrides));
    assert!(b.enabled && b.allowed_models.is_empty() && b.rate_limit_rps.is_none());
    let shown = settings.to_yaml();
    assert!(
        !shown.contains("sk-secret") && !shown.contains(ABC),
        "{shown}"
    );
}

#[test]
fn every_problem_of_every_entry_is_reported_at_once() {
    let text = format!(
        "tenants:\n  api_keys:\n  - {{key: k1}}\n  - {{name: a, key: k2, key_sha256: {ABC}}}\n  - {{name: a}}\n  - {{name: \
         b, key_sha256: 12ab}}\n  - {{name: c, key: abc}}\n  - {{name: d, key_sha256: {ABC}}}\n  - {{name: e, key: k3, \
         allowed_models: ['*x'], expires_at: soon}}\n  - {{name: f, key: 'a b'}}\n  - {{name: g, key: k5, rate_limit_rps: \
         0, weight: 0, priority: 0.5}}\n"
    );
    let problems = load_all(&text, &[], &[]).expect_err("nearly every entry is wrong");
    let found: Vec<(&str, &str)> = problems
        .iter()
        .map(|problem| (&*problem.path, &*problem.message))
        .collect();
    let of = |at: usize, key: &str| format!("tenants.api_keys[{at}].{key}");
    for (path, message) in [
        (of(0, "name"), "missing"),
        (of(1, "key_sha256"), "set beside `key`"),
        (of(2, "key"), "missing"),
        (of(3, "key_sha256"), "no SHA-256"),
        (of(5, "key_sha256"), "the key of tenants.api_keys[4] too"),
        (of(6, "allowed_models"), "`*x` is no name of models"),
        (of(6, "expires_at"), "no time of RFC 3339"),
        (of(7, "key"), "cannot be sent in a header"),
        (of(8, "priority"), "no whole number"),
    ] {
        assert!(found.contains(&(&*path, message)), "{path}: {found:#?}");
    }
    assert_eq!(found.len(), 11, "{found:#?}");
    assert!(!format!("{problems:?}").contains("a b"), "no key is shown");
}

#[test]
#[contract("V31")]
fn entries_of_one_name_are_keys_of_one_tenant_and_agree() {
    let of = |more: &str| {
        format!(
            "api_keys:\n- {{name: a, key: k1, max_concurrent: 2}}\n- {{name: a, key: k2{more}}}\n"
        )
    };
    settings(&of(", max_concurrent: 2, enabled: false, metadata: {x: y}"));
    for (more, key) in [
        ("", "max_concurrent"),
        (", max_concurrent: 2, rate_limit_rps: 1", "rate_limit_rps"),
        (", max_concurrent: 2, scopes: [chat]", "scopes"),
        (", max_concurrent: 2, allowed_models: [m]", "allowed_models"),
        (", max_concurrent: 2, engine_fields: [rid]", "engine_fields"),
    ] {
        let problem = problem(&of(more));
        assert_eq!(problem.path, format!("tenants.api_keys[1].{key}"));
        assert!(
            problem.message.contains("tenant `a`"),
            "{}",
            problem.message
        );
    }
}

#[test]
#[contract("S43")]
fn an_unknown_field_for_engines_is_a_problem_that_lists_the_known_ones() {
    let found = problem("api_keys: [{name: a, key: k, engine_fields: [rid, lora_path]}]\n");
    let shown = found.to_string();
    let list = "tenants.api_keys[0].engine_fields";
    assert!(shown.contains(list), "{shown}");
    for field in EngineField::ALL {
        assert!(shown.contains(field.as_str()), "{field:?}: {shown}");
    }
}

#[test]
#[contract("S6")]
fn the_digest_of_an_empty_key_and_the_label_of_others_are_refused() {
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let problem_of = |entry: &str| problem(&format!("api_keys: [{{{entry}}}]\n"));
    let found = problem_of(&format!("name: a, key_sha256: {empty}"));
    assert_eq!(found.path, "tenants.api_keys[0].key_sha256");
    assert_eq!(
        problem_of("name: other, key: k").path,
        "tenants.api_keys[0].name"
    );
}

#[test]
#[contract("S9", "V32")]
fn a_key_in_the_place_of_an_entry_or_under_another_name_is_not_shown() {
    for text in [
        "api_keys: [sk-live-1]\n",
        "api_keys: sk-live-1\n",
        "api_keys: {a: sk-live-1}\n",
        "api_keys: [[sk-live-1]]\n",
        "api_keys: [{name: a, sha256: sk-live-1, key: k}]\n",
    ] {
        let problems = load_all(text, &[], &[]).expect_err("it is wrong");
        let shown = format!("{problems:?}");
        assert!(!shown.contains("sk-live"), "{text}{shown}");
    }
    let variable = [("WARMROUTE_API_KEYS", "sk-live-1,sk-live-2")];
    let shown = format!("{:?}", load_all("", &variable, &[]));
    assert!(!shown.contains("sk-live"), "{shown}");
}

#[test]
#[contract("V32")]
fn settings_hold_the_digest_of_a_key_only() {
    let settings = settings("api_keys: [{name: a, key: abc}]\n");
    let entry = &settings.tenants.api_keys[0];
    assert_eq!(entry.key, None);
    assert_eq!(
        entry.key_sha256.as_ref().map(config::Secret::expose),
        Some(ABC)
    );
}

#[test]
#[contract("V32")]
fn a_changed_key_is_a_live_change_although_both_are_shown_alike() {
    let [old, new] =
        ["one", "two"].map(|key| settings(&format!("api_keys: [{{name: a, key: {key}}}]\n")));
    let changes = ConfigChanges::between(&old, &new);
    assert_eq!(changes.live, ["tenants.api_keys"]);
    assert!(changes.restart_needed.is_empty());
    assert_eq!(ConfigChanges::between(&old, &old), ConfigChanges::default());
}

#[test]
fn keys_protect_a_listener_that_others_can_reach() {
    let listen = "server: {listen: '0.0.0.0:8080'}\n";
    settings(&format!("{listen}api_keys: [{{name: a, key: k}}]\n"));
    for open in ["", "api_keys: []\n"] {
        assert_eq!(problem(&format!("{listen}{open}")).path, "server.listen");
    }
}

/// One line of a keys file.
fn line(name: &str, key: &str, more: &str) -> String {
    format!("{{\"name\": \"{name}\", \"key\": \"{key}\"{more}}}\n")
}

#[test]
#[contract("V31", "V32")]
fn a_keys_file_has_an_entry_in_json_on_each_line() {
    let beside = settings("api_keys: [{name: a, key: abc}]\n");
    let beside = &beside.tenants.api_keys;
    let text = [
        "# made by hand\n\n".to_owned(),
        line("b", "k1", ", \"max_concurrent\": 3"),
        format!(
            "  {{\"name\": \"c\", \"key_sha256\": \"{}\"}}  \n",
            "0a".repeat(32)
        ),
        line("b", "k2", ", \"max_concurrent\": 3, \"enabled\": false"),
        line("a", "k3", ""),
    ];
    let listed = config::keys_file(&text.concat(), "keys", beside).expect("good lines");
    let entries = listed.entries();
    let names: Vec<_> = entries.iter().map(|entry| &**entry.name()).collect();
    assert_eq!(names, ["b", "c", "b", "a"]);
    assert_eq!(entries[0].digest(), KeyDigest::of(b"k1"));
    assert_eq!(entries[1].digest().to_hex(), "0a".repeat(32));
    let enabled: Vec<_> = entries.iter().map(KeyEntry::is_enabled).collect();
    assert_eq!(enabled, [true, true, false, true]);
    // What a line leaves out has the defaults of the configuration, and equal rules are shared.
    let same = "api_keys: [{name: c, key: x}, {name: b, key: y, max_concurrent: 3}]\n";
    let same = settings(same).tenants.api_keys;
    let rules = |at: usize| EntryRules::of(&same[at]);
    assert_eq!(**entries[1].rules(), rules(0));
    assert_eq!(**entries[0].rules(), rules(1));
    assert!(Arc::ptr_eq(entries[1].rules(), entries[3].rules()));
    assert!(Arc::ptr_eq(entries[0].name(), entries[2].name()));
    let none = config::keys_file("", "keys", beside).expect("no lines");
    assert!(none.entries().is_empty());
}

#[test]
#[contract("S9")]
fn every_wrong_line_of_a_keys_file_is_named_and_no_key_is_shown() {
    let beside = settings("api_keys: [{name: a, key: abc, max_concurrent: 2}]\n");
    let text = [
        "sk-live-1\n".to_owned(),
        "[\"sk-live-1\"]\n".to_owned(),
        "{\"name\": \"b\", \"key\": sk-live-1\n".to_owned(),
        "{name: x, sk-live-1}\n".to_owned(),
        line("b", "sk-live-1", ", \"unknown\": 1"),
        line("", "sk-live-2", ""),
        line("c", "abc", ""),
        line("a", "sk-live-3", ""),
        line("d", "sk-live-4", ""),
        line("d", "sk-live-5", ", \"scopes\": [\"chat\"]"),
        line("e", "sk-live-4", ""),
    ];
    let found = config::keys_file(&text.concat(), "keys", &beside.tenants.api_keys);
    let problems = found.expect_err("most lines are wrong");
    let of = |number: u64| problems.iter().any(|problem| problem.line == Some(number));
    for number in [1, 2, 3, 4, 5, 6, 7, 8, 10, 11] {
        assert!(of(number), "line {number}: {problems:#?}");
    }
    assert!(!of(9), "{problems:#?}");
    let shown = format!("{problems:?}");
    assert!(!shown.contains("sk-live"), "{shown}");
}
