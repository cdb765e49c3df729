//! Section `server`: values that are more than one kind, and what its keys have to do with each other.

use super::problem_at;
use crate::{MemoryBudget, checked_value::CheckedValue, problem::ProblemDraft};

/// `server.memory_budget`.
pub(super) fn memory_budget(value: &CheckedValue) -> MemoryBudget {
    match (value.size_if_set(), value.word()) {
        (Some(bytes), _) => MemoryBudget::Bytes(bytes),
        (None, Some("off")) => MemoryBudget::Off,
        (None, _) => MemoryBudget::Auto,
    }
}

/// A body that is not too long must fit beside no others, or it would be told to try again for ever.
pub(super) fn check_body_fits(section: &CheckedValue, problems: &mut Vec<ProblemDraft>) {
    let (one, all) = (section.key("max_body_bytes"), section.key("max_held_bytes"));
    if one.failed || all.failed || one.size() <= all.size() {
        return;
    }
    // The one that was set is the one to correct; where both were, that for all bodies.
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
