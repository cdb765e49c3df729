//! Checks of list `tenants.api_keys`.

use std::collections::HashMap;

use settings::{CheckedValue, Value};
use tenants::{AllowedModels, KeyDigest, expiry};

use super::problem_at;
use crate::problem::ProblemDraft;

/// Longest name of a tenant, in bytes.
const MAX_NAME: usize = 128;

/// Checks that each tenant has a name and a key of its own, and that models and times can be read.
pub(super) fn check(list: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let (mut names, mut keys) = (HashMap::new(), HashMap::new());
    for (at, entry) in list.items().iter().enumerate() {
        let entry = TenantCheck { at, entry };
        problems.extend(entry.name(&mut names));
        problems.extend(entry.key(&mut keys));
        problems.extend(entry.models());
        problems.extend(entry.priority());
        problems.extend(entry.expiry());
    }
}

/// An entry of the list, and its place there.
struct TenantCheck<'a> {
    at: usize,
    entry: &'a CheckedValue,
}

impl<'a> TenantCheck<'a> {
    fn problem(&self, key: &str, message: impl Into<String>, expected: &str) -> ProblemDraft {
        let path = format!("tenants.api_keys[{}].{key}", self.at);
        let value = self.entry.key(key);
        let draft = ProblemDraft::new(path, message).expected(expected);
        let draft = match value.value {
            Value::Unset => draft,
            _ => draft.value(value.shown()),
        };
        problem_at(draft, value, self.entry)
    }

    fn name(&self, names: &mut HashMap<&'a str, usize>) -> Option<ProblemDraft> {
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
        let first = *names.entry(text).or_insert(self.at);
        (first != self.at).then(|| {
            let message = format!("a second tenant `{text}`");
            self.problem("name", message, "another name").in_context()
        })
    }

    fn key(&self, keys: &mut HashMap<KeyDigest, usize>) -> Option<ProblemDraft> {
        const EITHER: &str = "either `key` or `key_sha256`";
        let (plain, hashed) = (self.entry.key("key"), self.entry.key("key_sha256"));
        if plain.failed || hashed.failed {
            return None;
        }
        let (name, digest) = match (plain.secret(), hashed.secret()) {
            (None, None) => return Some(self.problem("key", "missing", EITHER)),
            (Some(_), Some(_)) => {
                let message = "set beside `key`";
                return Some(self.problem("key_sha256", message, EITHER).in_context());
            }
            (Some(key), None) if !is_sendable(key.expose()) => {
                let expected = "visible ASCII characters without spaces, at least one";
                return Some(self.problem("key", "cannot be sent in a header", expected));
            }
            (Some(key), None) => ("key", KeyDigest::of(key.expose().as_bytes())),
            (None, Some(text)) => match KeyDigest::from_hex(text.expose()) {
                Ok(digest) => ("key_sha256", digest),
                Err(_) => {
                    let expected =
                        "the 64 hexadecimal digits that `printf %s KEY | sha256sum` prints";
                    return Some(self.problem("key_sha256", "no SHA-256", expected));
                }
            },
        };
        let first = *keys.entry(digest).or_insert(self.at);
        (first != self.at).then(|| {
            let message = format!("the key of tenants.api_keys[{first}] too");
            self.problem(name, message, "a key of its own").in_context()
        })
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
