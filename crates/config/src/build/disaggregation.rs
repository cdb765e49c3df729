//! Section `disaggregation`, and the requirements of its pools on workers.

use kv_blocks::Role;

use super::problem_at;
use crate::{Connector, DisaggregationSection, checked_value::CheckedValue, problem::ProblemDraft};

pub(super) fn disaggregation(section: &CheckedValue) -> DisaggregationSection {
    DisaggregationSection {
        enabled: section.key("mode").word() != Some("off"),
        connector: match section.key("connector").word() {
            Some("mooncake") => Connector::Mooncake,
            Some("sglang") => Connector::Sglang,
            _ => Connector::Nixl,
        },
        uncached_token_threshold: u32::try_from(section.key("uncached_token_threshold").int())
            .unwrap_or(u32::MAX),
    }
}

/// Returns the role of the worker at index `at`; a worker that transfers caches must be reachable
/// by others.
pub(super) fn role(
    entry: &CheckedValue,
    url: &str,
    at: usize,
    problems: &mut Vec<ProblemDraft>,
) -> Role {
    let role = match entry.key("role").word() {
        Some("prefill") => Role::Prefill,
        Some("decode") => Role::Decode,
        _ => Role::Unified,
    };
    if role != Role::Unified && url.starts_with("unix:") {
        let message = format!(
            "a {} worker behind a Unix socket: KV caches are handed over between hosts and ports",
            role.as_str()
        );
        let draft = ProblemDraft::new(format!("workers[{at}].url"), message).value(url.into());
        problems.push(problem_at(
            draft.expected("http://HOST:PORT, or role: unified"),
            entry.key("url"),
            entry,
        ));
    }
    role
}
