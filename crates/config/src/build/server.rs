//! Section `server`: relations between its keys.

use settings::CheckedValue;

use super::problem_at;
use crate::problem::ProblemDraft;

/// Checks that the longest allowed body fits the budget of all bodies; otherwise its client would
/// be told to retry for ever.
pub(super) fn check_body_fits(section: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let (one, all) = (section.key("max_body_bytes"), section.key("max_held_bytes"));
    if one.failed || all.failed || one.size() <= all.size() {
        return;
    }
    // The problem is at the key that was set; if both were, at the one for all bodies.
    let (name, set) = if all.is_set() {
        ("max_held_bytes", all)
    } else {
        ("max_body_bytes", one)
    };
    let message = format!(
        "server.max_held_bytes {} is below server.max_body_bytes {}",
        all.size(),
        one.size()
    );
    let draft = ProblemDraft::new(format!("server.{name}"), message)
        .value(set.shown())
        .in_context();
    problems.push(problem_at(
        draft.expected("max_held_bytes >= max_body_bytes"),
        set,
        section,
    ));
}
