//! The Redis server that stores share.

use std::time::Duration;

use super::problem_at;
use crate::{Redis, checked::Checked, problem::Draft};

const URL: &str = "response_cache.redis.url";

/// `response_cache.redis`, because `chosen_by` selects it. Without a URL that is a problem, and `None`.
pub(super) fn redis(root: &Checked, chosen_by: &str, problems: &mut Vec<Draft>) -> Option<Redis> {
    let cache = root.key("response_cache");
    let section = cache.key("redis");
    let url = section.key("url");
    let Some(found) = url.redis_url() else {
        problems.extend(missing(root, chosen_by, root.key("kv_cache_index").key("backend")));
        return None;
    };
    let milliseconds = |key: &str| Duration::from_millis(section.key(key).int());
    Some(Redis {
        url: found.clone(),
        tls: found.is_tls() || section.key("tls").bool(),
        pool_size: section.key("pool_size").count(),
        connect_timeout: milliseconds("connect_timeout_ms"),
        command_timeout: milliseconds("command_timeout_ms"),
    })
}

/// A cache of replies that is to be kept there needs a server too, also while nothing comes of it: who sets it so has
/// forgotten the server, not the cache.
pub(super) fn cache_has_a_server(root: &Checked, problems: &mut Vec<Draft>) {
    let cache = root.key("response_cache");
    let (backend, l1) = (cache.key("backend"), cache.key("l1").key("type"));
    let (chosen_by, key) = match (backend.word(), l1.word()) {
        (Some("redis"), _) => ("response_cache.backend", backend),
        (Some("tiered"), Some("redis")) => ("response_cache.l1.type", l1),
        _ => return,
    };
    let told = problems.iter().any(|problem| problem.path == URL);
    if cache.key("enabled").bool() && cache.key("redis").key("url").redis_url().is_none() && !told {
        problems.extend(missing(root, chosen_by, key));
    }
}

/// The problem of a server that is not named, where it was not told otherwise already.
fn missing(root: &Checked, chosen_by: &str, key: &Checked) -> Option<Draft> {
    let section = root.key("response_cache").key("redis");
    let message = format!("missing, and `{chosen_by}` is redis");
    let draft = Draft::new(URL, message).expected("a URL such as redis://127.0.0.1:6379");
    (!section.key("url").failed).then(|| problem_at(draft, section, key))
}
