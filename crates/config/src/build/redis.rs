//! The Redis server that stores share.

use settings::{CheckedValue, Setting};

use super::problem_at;
use crate::{
    problem::ProblemDraft,
    sections::{CacheRedis, RedisSection},
};

const URL: &str = "response_cache.redis.url";

/// Returns `response_cache.redis`, selected by `key` (`chosen_by`). A missing URL is a problem,
/// reported once however many keys need the server, and gives `None`.
pub(super) fn redis(
    root: &CheckedValue,
    chosen_by: &str,
    key: &CheckedValue,
    problems: &mut Vec<ProblemDraft>,
) -> Option<RedisSection> {
    let found = server(root);
    if found.is_none() && !problems.iter().any(|problem| problem.path == URL) {
        problems.extend(missing(root, chosen_by, key));
    }
    found
}

/// Returns the server, if one is configured.
pub(super) fn server(root: &CheckedValue) -> Option<RedisSection> {
    CacheRedis::read(root.key("response_cache").key("redis"))?.address()
}

/// Returns the problem of a missing server, unless it was reported already.
fn missing(root: &CheckedValue, chosen_by: &str, key: &CheckedValue) -> Option<ProblemDraft> {
    let section = root.key("response_cache").key("redis");
    let message = format!("missing, and `{chosen_by}` is redis");
    let draft = ProblemDraft::new(URL, message).expected("a URL such as redis://127.0.0.1:6379");
    (!section.key("url").failed).then(|| problem_at(draft, section, key))
}
