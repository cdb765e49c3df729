//! A search for the longer secrets of all tests in what the programs of all tests write (goal G19).
//!
//! Secrets are learned from flags, configurations and request headers as the tests use them, and
//! looked for when a program ends and in the replies of servers. `WARMROUTE_TEST_LOG=trace` starts
//! all programs with that log level.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

/// Shorter values stand in logs by chance, as do those in hex, which are digests or ids.
const SHORTEST: usize = 12;

static KNOWN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Names of settings whose values are secrets.
const SETTINGS: [&str; 6] = ["key", "api_key", "mac_key", "token", "secret", "password"];
/// Flags whose values are secrets.
const FLAGS: [&str; 1] = ["--api-key"];
/// Request headers whose values are secrets.
const HEADERS: [&str; 3] = ["authorization", "x-api-key", "x-router-key"];

fn add(value: &str) {
    let value = value.trim_matches(['"', '\'']);
    let is_hex = value.bytes().all(|byte| byte.is_ascii_hexdigit());
    let known = value.len() >= SHORTEST && !is_hex && !value.contains(['$', '/', ' ', '*']);
    if known {
        let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(value.to_owned());
    }
}

/// Learns the values of secret flags.
pub fn learn_from_args(args: &[&str]) {
    for pair in args.windows(2) {
        if FLAGS.contains(&pair[0]) {
            add(pair[1]);
        }
    }
}

/// Learns the values of secret settings from a configuration, in block or flow style.
pub fn learn_from_yaml(yaml: &str) {
    for part in yaml.split([',', '{', '}', '[', ']', '\n']) {
        let Some((name, value)) = part.split_once(": ") else {
            continue;
        };
        if SETTINGS.contains(&name.trim_start_matches([' ', '-'])) {
            add(value.trim());
        }
    }
}

/// Learns the secret of a request header.
pub fn learn_from_header(name: &str, value: &str) {
    if HEADERS.contains(&name.to_ascii_lowercase().as_str()) {
        add(value.strip_prefix("Bearer ").unwrap_or(value));
    }
}

/// Fails the test if a known secret stands in what a program wrote.
pub fn assert_none_in(what: &str, text: &[u8]) {
    let all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = all
        .iter()
        .find(|secret| memchr::memmem::find(text, secret.as_bytes()).is_some());
    assert!(found.is_none(), "{what} has the secret {found:?}");
}
