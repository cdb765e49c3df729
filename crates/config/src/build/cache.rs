//! Checks of section `model_aggregation`.

use settings::CheckedValue;

use super::problem_at;
use crate::problem::ProblemDraft;

/// Checks that an empty list first counts no longer than it may at most.
pub(super) fn check_empty_lists(section: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
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
}
