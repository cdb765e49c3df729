//! Differences between settings, and the part that a running program can apply.

use std::{collections::BTreeMap, sync::LazyLock};

use routing::Policy;
use serde_json::Value as Json;
use settings::{Reload, Setting};

use crate::{paths::paths_of, sections::Settings};

/// Keys that take effect at the next start, by their paths; a key covers everything below it.
static RESTART_KEYS: LazyLock<Vec<String>> =
    LazyLock::new(|| paths_of(|key| key.reload == Reload::Restart));

/// Returns whether a key takes effect only at the next start.
pub(crate) fn is_fixed(path: &str) -> bool {
    RESTART_KEYS.iter().any(|fixed| {
        path.strip_prefix(fixed.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

/// Differences between two settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigChanges {
    /// Keys that take effect at once, such as `routing.policy` or `workers[w1].weight`.
    pub live: Vec<String>,
    /// Keys that take effect at the next start.
    pub restart_needed: Vec<String>,
}

impl ConfigChanges {
    /// Returns the keys of `new` that a program started with `started` does not apply; `taken` is
    /// the part that it does ([`Settings::taken_over`]).
    pub fn left_for_restart(started: &Settings, taken: &Settings, new: &Settings) -> Vec<String> {
        let mut left = Self::between(started, new).restart_needed;
        // Live keys that depend on one of those.
        left.extend(Self::between(taken, new).live);
        left.sort_unstable();
        left.dedup();
        left
    }

    /// Compares `old` with `new`.
    pub fn between(old: &Settings, new: &Settings) -> Self {
        let (before, after) = (leaves(&old.effective), leaves(&new.effective));
        let mut paths: Vec<&String> = before.keys().chain(after.keys()).collect();
        paths.sort_unstable();
        paths.dedup();
        let mut changes = Self::default();
        for path in paths
            .into_iter()
            .filter(|path| before.get(*path) != after.get(*path))
        {
            // An added or removed worker is one change, whatever its keys are.
            let worker = path
                .strip_prefix("workers[")
                .and_then(|rest| rest.split_once(']'))
                .map(|(name, _)| name);
            let known = |settings: &Settings, name| {
                settings.workers.iter().any(|worker| worker.name == name)
            };
            match worker.filter(|name| known(old, *name) != known(new, *name)) {
                Some(name) => changes.add(format!("workers[{name}]")),
                None => changes.add(path.clone()),
            }
        }
        changes.live.dedup();
        // All secrets look alike in the effective configuration.
        let key_of = |settings: &Settings, name: &str| {
            let worker = settings.workers.iter().find(|worker| worker.name == name)?;
            worker.api_key.clone()
        };
        for worker in &new.workers {
            let path = format!("workers[{}].api_key", worker.name);
            let known = old.workers.iter().any(|old| old.name == worker.name);
            if known && key_of(old, &worker.name) != worker.api_key && !changes.live.contains(&path)
            {
                changes.live.push(path);
            }
        }
        let (before, after) = (&old.response_cache, &new.response_cache);
        for (path, changed) in [
            ("admin.tokens", old.admin.tokens != new.admin.tokens),
            (
                "tenants.api_keys",
                old.tenants.api_keys != new.tenants.api_keys,
            ),
            (
                "tenants.keys_file",
                old.tenants.listed != new.tenants.listed,
            ),
            ("response_cache.mac_key", before.mac_key != after.mac_key),
            (
                "response_cache.l2.secret_key",
                before.l2.credentials() != after.l2.credentials(),
            ),
        ] {
            if changed
                && !changes
                    .live
                    .iter()
                    .chain(&changes.restart_needed)
                    .any(|told| told == path)
            {
                changes.add(path.to_owned());
            }
        }
        changes
    }

    fn add(&mut self, path: String) {
        if is_fixed(&path) {
            self.restart_needed.push(path)
        } else {
            self.live.push(path)
        }
    }
}

/// Returns every value that is no mapping, by its path; workers by name.
fn leaves(effective: &Json) -> BTreeMap<String, &Json> {
    fn walk<'a>(value: &'a Json, path: String, out: &mut BTreeMap<String, &'a Json>) {
        let Json::Object(entries) = value else {
            out.insert(path, value);
            return;
        };
        for (key, value) in entries {
            walk(
                value,
                if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                },
                out,
            );
        }
    }
    let mut out = BTreeMap::new();
    for (key, value) in effective.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            ("workers", Json::Array(workers)) => {
                for worker in workers {
                    let name = worker["name"].as_str().unwrap_or_default();
                    walk(worker, format!("workers[{name}]"), &mut out);
                }
            }
            _ => walk(value, key.clone(), &mut out),
        }
    }
    out
}

impl Settings {
    /// Returns these settings as far as a program started with `started` can apply them: fixed keys
    /// stay, and so do policies of `current` in the place of those that need a fixed key's new
    /// value.
    #[must_use]
    pub fn taken_over(mut self, started: &Self, current: &Self) -> Self {
        self.keep_restart_keys(started);
        self.prompt_cache_redis
            .clone_from(&started.prompt_cache_redis);
        keep_fixed(&mut self.effective, &started.effective, "");
        if self.routing.lmcache.is_none() && self.routing.names_policy(Policy::LmcacheAware) {
            self.keep_policies(current);
        }
        if !self.is_set("routing.policy") {
            let policy = default_policy(self.prefix_routing.enabled, self.kv_cache_index.enabled);
            self.routing.policy = Some(policy);
            self.effective["routing"]["policy"] = policy.as_str().into();
        }
        self
    }

    /// Copies the policies of `current`: those of all models and those of single ones.
    fn keep_policies(&mut self, current: &Self) {
        let (new, old) = (&mut self.routing, &current.routing);
        new.policy = old.policy;
        new.prefill_policy = old.prefill_policy;
        new.decode_policy = old.decode_policy;
        new.models.clone_from(&old.models);
        for key in ["policy", "prefill_policy", "decode_policy", "models"] {
            self.effective["routing"][key] = current.effective["routing"][key].clone();
        }
    }
}

/// Returns the policy of a configuration that names none.
pub(crate) fn default_policy(prefix_routing: bool, kv_cache_index: bool) -> Policy {
    if prefix_routing || kv_cache_index {
        Policy::Continuum
    } else {
        Policy::Warm
    }
}

/// Copies the fixed values of `old` into `new`, which has the same keys.
fn keep_fixed(new: &mut Json, old: &Json, path: &str) {
    let (Json::Object(new), Json::Object(old)) = (new, old) else {
        return;
    };
    for (key, value) in new {
        let path = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        match old.get(key) {
            Some(old) if is_fixed(&path) => value.clone_from(old),
            Some(old) => keep_fixed(value, old, &path),
            None => {}
        }
    }
}
