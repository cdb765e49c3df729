//! Checks of list `tenants.api_keys`.

use std::collections::HashMap;

use settings::{CheckedValue, Value};
use tenants::{AllowedModels, KeyDigest, expiry};

use super::problem_at;
use crate::{key_path::join, problem::ProblemDraft};

/// Longest name of a tenant, in bytes.
const MAX_NAME: usize = 128;
/// The label of tenants without one of their own in metrics.
const RESERVED_NAME: &str = "other";
/// What the entries of one tenant, each with a key of its own, have in common.
const OF_TENANT: [&str; 11] = [
    "scopes",
    "allowed_models",
    "engine_fields",
    "rate_limit_rps",
    "max_concurrent",
    "prompt_tokens_per_minute",
    "output_tokens_per_minute",
    "weight",
    "priority",
    "slo_ttft",
    "slo_tpot",
];

/// Checks that each entry has a name and a key of its own, that those of one name agree, and that
/// models and times can be read.
pub(super) fn check(list: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let (mut names, mut keys) = (HashMap::new(), HashMap::new());
    for (at, entry) in list.items().iter().enumerate() {
        let path = format!("tenants.api_keys[{at}]");
        let check = EntryCheck { path: &path, entry };
        let digest = check.alone(problems);
        if let Some(digest) = digest {
            let first = *keys.entry(digest).or_insert(at);
            if first != at {
                let message = format!("the key of tenants.api_keys[{first}] too");
                let draft = check.problem(check.key_name(), message, "a key of its own");
                problems.push(draft.in_context());
            }
        }
        let Some(name) = entry.key("name").text() else {
            continue;
        };
        let (first, of_first) = *names.entry(name).or_insert((at, entry));
        let mut common = OF_TENANT.into_iter();
        let other = common.find(|key| entry.key(key).value != of_first.key(key).value);
        if let Some(key) = other {
            let message =
                format!("differs from tenants.api_keys[{first}].{key} of tenant `{name}`");
            let expected = "the same for every key of one tenant";
            problems.push(check.problem(key, message, expected).in_context());
        }
    }
}

/// Checks that each service that validates keys has a URL.
pub(super) fn check_services(list: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    for (at, entry) in list.items().iter().enumerate() {
        let url = entry.key("url");
        if url.value == Value::Unset && !url.failed {
            let path = format!("tenants.key_validation[{at}].url");
            let draft = ProblemDraft::new(path, "missing")
                .expected("a URL such as https://auth.internal/validate");
            problems.push(problem_at(draft, url, entry));
        }
    }
}

/// An entry, and its path in problems.
#[derive(Clone, Copy)]
pub(crate) struct EntryCheck<'a> {
    pub(crate) path: &'a str,
    pub(crate) entry: &'a CheckedValue,
}

impl EntryCheck<'_> {
    /// Checks the entry by itself, and returns the digest of its key.
    pub(crate) fn alone(&self, problems: &mut Vec<ProblemDraft>) -> Option<KeyDigest> {
        problems.extend(self.name());
        let digest = match self.digest() {
            Ok(digest) => digest,
            Err(problem) => {
                problems.push(*problem);
                None
            }
        };
        problems.extend(self.models());
        problems.extend(self.priority());
        problems.extend(self.expiry());
        digest
    }

    fn problem(&self, key: &str, message: impl Into<String>, expected: &str) -> ProblemDraft {
        let path = join(self.path, key);
        let value = self.entry.key(key);
        let draft = ProblemDraft::new(path, message).expected(expected);
        let draft = match value.value {
            Value::Unset => draft,
            _ => draft.value(value.shown()),
        };
        problem_at(draft, value, self.entry)
    }

    fn name(&self) -> Option<ProblemDraft> {
        let name = self.entry.key("name");
        if name.failed {
            return None;
        }
        let text = name.text().unwrap_or_default();
        if text.is_empty() {
            return Some(self.problem("name", "missing", "the tenant's name"));
        }
        if text.len() > MAX_NAME || text.chars().any(char::is_control) {
            let expected = "at most 128 bytes without control characters";
            return Some(self.problem("name", "cannot stand in metrics", expected));
        }
        (text == RESERVED_NAME).then(|| {
            let message = "the label of tenants without one of their own in metrics";
            self.problem("name", message, "another name")
        })
    }

    /// Returns the name of the key that is set.
    fn key_name(&self) -> &'static str {
        if self.entry.key("key").is_set() {
            "key"
        } else {
            "key_sha256"
        }
    }

    /// `None`: the walk has found a problem in the key already.
    fn digest(&self) -> Result<Option<KeyDigest>, Box<ProblemDraft>> {
        const EITHER: &str = "either `key` or `key_sha256`";
        const HEX: &str = "the 64 hexadecimal digits that `printf %s KEY | sha256sum` prints";
        const SET: &str = "the digest of a key: was the key's variable set?";
        const SENDABLE: &str = "visible ASCII characters without spaces, at least one";
        let wrong = |key: &str, message: &str, expected: &str| {
            Err(Box::new(self.problem(key, message, expected)))
        };
        let (plain, hashed) = (self.entry.key("key"), self.entry.key("key_sha256"));
        if plain.failed || hashed.failed {
            return Ok(None);
        }
        match (plain.secret(), hashed.secret()) {
            (None, None) => wrong("key", "missing", EITHER),
            (Some(_), Some(_)) => {
                let draft = self.problem("key_sha256", "set beside `key`", EITHER);
                Err(Box::new(draft.in_context()))
            }
            (Some(key), None) if !is_sendable(key.expose()) => {
                wrong("key", "cannot be sent in a header", SENDABLE)
            }
            (Some(key), None) => Ok(Some(KeyDigest::of(key.expose().as_bytes()))),
            (None, Some(text)) => match KeyDigest::from_hex(text.expose()) {
                Ok(digest) if digest.is_of_nothing() => {
                    wrong("key_sha256", "the SHA-256 of an empty text", SET)
                }
                Ok(digest) => Ok(Some(digest)),
                Err(_) => wrong("key_sha256", "no SHA-256", HEX),
            },
        }
    }

    fn models(&self) -> Option<ProblemDraft> {
        let models = self.entry.key("allowed_models");
        let texts = || models.items().iter().filter_map(CheckedValue::text);
        let wrong = texts().find(|text| AllowedModels::read([*text]).is_err())?;
        let message = format!("`{wrong}` is no name of models");
        let expected = "a model's name, or its beginning and a `*` at the end";
        Some(self.problem("allowed_models", message, expected))
    }

    fn priority(&self) -> Option<ProblemDraft> {
        let priority = self.entry.key("priority").float_if_set()?;
        (priority.fract() != 0.0).then(|| {
            let expected = "a whole number from -100 to 100";
            self.problem("priority", "no whole number", expected)
        })
    }

    fn expiry(&self) -> Option<ProblemDraft> {
        let text = self.entry.key("expires_at").text()?;
        expiry(text).is_none().then(|| {
            let expected = "a time as in `2027-01-31T00:00:00Z`";
            self.problem("expires_at", "no time of RFC 3339", expected)
        })
    }
}

/// Returns whether a client can send the key.
fn is_sendable(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic())
}
