//! Sections `cache` and `model_aggregation`.

use std::time::Duration;

use super::problem_at;
use crate::{
    CacheSection, ModelAggregationSection, checked_value::CheckedValue, problem::ProblemDraft,
};

/// Builds section `cache`.
pub(super) fn cache(section: &CheckedValue) -> CacheSection {
    let ttl = section.key("deduplication_ttl").duration();
    CacheSection {
        model_ttl: section.key("model_cache_ttl").duration(),
        deduplication: section.key("enable_deduplication").bool().then_some(ttl),
    }
}

/// Builds section `model_aggregation`. An empty list whose first lifetime exceeds the longest one
/// is a problem.
pub(super) fn model_aggregation(
    section: &CheckedValue,
    problems: &mut Vec<ProblemDraft>,
) -> ModelAggregationSection {
    let (base, most) = (
        section.key("empty_response_base_ttl_seconds"),
        section.key("empty_response_max_ttl_seconds"),
    );
    if base.int() > most.int() && !base.failed && !most.failed {
        let message = format!(
            "{} s is above empty_response_max_ttl_seconds, {} s",
            base.int(),
            most.int()
        );
        let draft = ProblemDraft::new("model_aggregation.empty_response_base_ttl_seconds", message)
            .in_context();
        problems.push(problem_at(
            draft.expected("a shorter time, or a longer one there"),
            base,
            most,
        ));
    }
    let background = section.key("background_refresh");
    ModelAggregationSection {
        ttl: section.key("cache_ttl").duration(),
        soft_ttl_ratio: section.key("soft_ttl_ratio").float(),
        empty_ttl: Duration::from_secs(base.int()),
        empty_max_ttl: Duration::from_secs(most.int()),
        max_entries: usize::try_from(section.key("max_cache_entries").int()).unwrap_or(usize::MAX),
        background: background
            .key("enabled")
            .bool()
            .then(|| background.key("check_interval").duration()),
    }
}
