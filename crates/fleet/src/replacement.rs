//! Workers that were taken out of the configuration while others came in their place.
//!
//! Such a worker serves until one that stays serves each of its models, and for [`LONGEST`] at most; then it ends what it
//! has. One that nobody replaces, or that is not ready, gets nothing new at once.

use std::time::Duration;

use kv_blocks::Moment;

use crate::{
    WorkerState,
    entry::{Admission, Entry},
};

/// Longest time that a worker serves after it was taken out of the configuration.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// The places in `entries` of workers that served until others were ready, and need not any longer.
pub(crate) fn no_longer_needed(entries: &[Entry], now: Moment) -> Vec<usize> {
    let over = |entry: &Entry| match entry.admission {
        Admission::UntilReplaced(until) => until <= now || !is_needed(entry, entries),
        Admission::Open | Admission::Closed => false,
    };
    entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| over(entry))
        .map(|(at, _)| at)
        .collect()
}

/// Whether a worker serves a model that only workers will serve which were never ready yet.
fn is_needed(entry: &Entry, entries: &[Entry]) -> bool {
    // A request does without a prefill worker.
    if entry.health.state() != WorkerState::Ready || entry.view.only_prefills() {
        return false;
    }
    let stays = |other: &&Entry| other.admission == Admission::Open && !other.view.only_prefills();
    let is_expected = entries.iter().filter(stays).any(|other| !other.was_ready);
    let serving = |id: &str| {
        entries
            .iter()
            .filter(stays)
            .any(|other| other.health.state() == WorkerState::Ready && lists(other, id))
    };
    let models = entry
        .view
        .models
        .iter()
        .map(|model| &model.id)
        .chain(entry.view.loras.iter().map(|lora| &lora.id));
    is_expected && models.into_iter().any(|id| !serving(id))
}

fn lists(entry: &Entry, id: &str) -> bool {
    entry.view.models.iter().any(|model| &*model.id == id)
        || entry.view.loras.iter().any(|lora| &*lora.id == id)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kv_blocks::{Role, WorkerId};
    use net::Clock;

    use super::*;
    use crate::{ServedModel, health::Check};

    fn until() -> Moment {
        Moment::at(LONGEST)
    }

    fn entry(id: u32, model: &str, admission: Admission, checked: Option<Check>) -> Entry {
        let mut entry = Entry::for_tests(WorkerId(id), &Clock::system());
        let listed = ServedModel {
            id: model.into(),
            root: None,
            max_model_len: None,
            created: 0,
            owned_by: "t".into(),
        };
        Arc::make_mut(&mut entry.view).models = vec![listed];
        if let Some(check) = checked {
            entry.health.checked(Moment::START, check);
        }
        entry.was_ready = checked == Some(Check::Passed);
        entry.admission = admission;
        entry
    }

    fn replaced(model: &str) -> Entry {
        entry(
            0,
            model,
            Admission::UntilReplaced(until()),
            Some(Check::Passed),
        )
    }

    #[test]
    fn a_worker_serves_until_one_that_stays_is_ready_for_its_model_and_a_minute_at_most() {
        let fleet = |new: Option<Check>| [replaced("m"), entry(1, "m", Admission::Open, new)];
        for coming in [None, Some(Check::Loading), Some(Check::Refused)] {
            assert!(
                no_longer_needed(&fleet(coming), Moment::START).is_empty(),
                "{coming:?}"
            );
            assert_eq!(no_longer_needed(&fleet(coming), until()), [0], "{coming:?}");
        }
        assert_eq!(
            no_longer_needed(&fleet(Some(Check::Passed)), Moment::START),
            [0]
        );
    }

    #[test]
    fn a_worker_that_nobody_replaces_or_that_fails_or_only_prefills_is_not_kept() {
        assert_eq!(no_longer_needed(&[replaced("m")], Moment::START), [0]);
        let new = || entry(1, "m", Admission::Open, None);
        let failed = entry(
            0,
            "m",
            Admission::UntilReplaced(until()),
            Some(Check::Failed),
        );
        assert_eq!(no_longer_needed(&[failed, new()], Moment::START), [0]);
        let mut prefills = replaced("m");
        Arc::make_mut(&mut prefills.view).role = Role::Prefill;
        assert_eq!(no_longer_needed(&[prefills, new()], Moment::START), [0]);
    }

    #[test]
    fn another_model_is_a_replacement_once_nobody_else_is_expected() {
        let other = |check| entry(1, "other", Admission::Open, check);
        assert!(no_longer_needed(&[replaced("m"), other(None)], Moment::START).is_empty());
        assert_eq!(
            no_longer_needed(&[replaced("m"), other(Some(Check::Passed))], Moment::START),
            [0]
        );
    }
}
