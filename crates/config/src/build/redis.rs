//! The Redis server that stores share.

use std::time::Duration;

use super::problem_at;
use crate::{Redis, checked::Checked, problem::Draft};

/// `response_cache.redis`, because `chosen_by` selects it. Without a URL that is a problem, and `None`.
pub(super) fn redis(root: &Checked, chosen_by: &str, problems: &mut Vec<Draft>) -> Option<Redis> {
    let cache = root.key("response_cache");
    let section = cache.key("redis");
    let url = section.key("url");
    let Some(found) = url.redis_url() else {
        if !url.failed {
            let message = format!("missing, and `{chosen_by}` is redis");
            let draft =
                Draft::new("response_cache.redis.url", message).expected("a URL such as redis://127.0.0.1:6379");
            problems.push(problem_at(draft, section, root.key("kv_cache_index").key("backend")));
        }
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
