//! Workers that were removed from the configuration while others took their place.
//!
//! Such a worker serves until each of its models has a ready worker that stays, and for [`LONGEST`]
//! at most; then it only finishes running requests. A worker without a replacement, or that is not
//! ready, gets no new requests at once.

use std::time::Duration;

use kv_blocks::Moment;

use crate::{WorkerState, worker_machine::WorkerAdmission, worker_record::WorkerRecord};

/// Longest time that a worker serves after its removal from the configuration.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// Returns the positions in `entries` of workers that served until their replacements were ready,
/// and are no longer needed.
pub(crate) fn no_longer_needed(entries: &[WorkerRecord], now: Moment) -> Vec<usize> {
    let over = |entry: &WorkerRecord| match entry.machine.admission() {
        WorkerAdmission::UntilReplaced(until) => until <= now || !is_needed(entry, entries),
        WorkerAdmission::Open | WorkerAdmission::Closed => false,
    };
    entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| over(entry))
        .map(|(at, _)| at)
        .collect()
}

/// Returns whether a worker serves a model that no staying worker serves yet, while one of those
/// was never ready.
fn is_needed(entry: &WorkerRecord, entries: &[WorkerRecord]) -> bool {
    // A request can do without a prefill worker.
    if entry.machine.health_state() != WorkerState::Ready || entry.view.only_prefills() {
        return false;
    }
    let stays = |other: &&WorkerRecord| {
        other.machine.admission() == WorkerAdmission::Open && !other.view.only_prefills()
    };
    let is_expected = entries
        .iter()
        .filter(stays)
        .any(|other| !other.machine.was_ready());
    let serving = |id: &str| {
        entries
            .iter()
            .filter(stays)
            .any(|other| other.machine.health_state() == WorkerState::Ready && lists(other, id))
    };
    let models = entry
        .view
        .served
        .models
        .iter()
        .map(|model| &model.id)
        .chain(entry.view.served.loras.iter().map(|lora| &lora.id));
    is_expected && models.into_iter().any(|id| !serving(id))
}

fn lists(entry: &WorkerRecord, id: &str) -> bool {
    entry
        .view
        .served
        .models
        .iter()
        .any(|model| &*model.id == id)
        || entry.view.served.loras.iter().any(|lora| &*lora.id == id)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kv_blocks::{Role, WorkerId};
    use net::Clock;

    use super::*;
    use crate::worker_machine::{CheckOutcome, WorkerEvent};

    fn until() -> Moment {
        Moment::at(LONGEST)
    }

    fn entry(id: u32, model: &str, checked: Option<CheckOutcome>) -> WorkerRecord {
        let entry = WorkerRecord::for_tests(WorkerId(id), &Clock::system()).serving(model);
        match checked {
            Some(outcome) => entry.checked(outcome),
            None => entry,
        }
    }

    fn removed(entry: WorkerRecord) -> WorkerRecord {
        entry.decided(WorkerEvent::Remove { until: until() })
    }

    fn replaced(model: &str) -> WorkerRecord {
        removed(entry(0, model, Some(CheckOutcome::Passed)))
    }

    #[test]
    fn a_removed_worker_serves_until_its_replacement_is_ready_or_for_a_minute() {
        let fleet = |new: Option<CheckOutcome>| [replaced("m"), entry(1, "m", new)];
        for coming in [
            None,
            Some(CheckOutcome::Loading),
            Some(CheckOutcome::Refused),
        ] {
            assert!(
                no_longer_needed(&fleet(coming), Moment::START).is_empty(),
                "{coming:?}"
            );
            assert_eq!(no_longer_needed(&fleet(coming), until()), [0], "{coming:?}");
        }
        assert_eq!(
            no_longer_needed(&fleet(Some(CheckOutcome::Passed)), Moment::START),
            [0]
        );
    }

    #[test]
    fn a_removed_worker_without_replacement_or_failing_or_prefill_only_is_not_kept() {
        assert_eq!(no_longer_needed(&[replaced("m")], Moment::START), [0]);
        let new = || entry(1, "m", None);
        let failed = removed(entry(0, "m", Some(CheckOutcome::Failed)));
        assert_eq!(no_longer_needed(&[failed, new()], Moment::START), [0]);
        let mut prefills = replaced("m");
        Arc::make_mut(&mut prefills.view).role = Role::Prefill;
        assert_eq!(no_longer_needed(&[prefills, new()], Moment::START), [0]);
    }

    #[test]
    fn a_ready_worker_of_another_model_is_a_replacement_if_no_other_is_expected() {
        let other = |check| entry(1, "other", check);
        assert!(no_longer_needed(&[replaced("m"), other(None)], Moment::START).is_empty());
        assert_eq!(
            no_longer_needed(
                &[replaced("m"), other(Some(CheckOutcome::Passed))],
                Moment::START
            ),
            [0]
        );
    }
}
