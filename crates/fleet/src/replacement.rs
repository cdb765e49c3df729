//! Workers that were removed from the configuration while others took their place.
//!
//! Such a worker serves until each of its models has a ready worker that stays, and for [`LONGEST`]
//! at most; then it only finishes running requests. A worker without a replacement, or that is not
//! ready, gets no new requests at once.

use std::time::Duration;

use kv_blocks::Moment;

use crate::{
    WorkerState,
    worker_record::{WorkerAdmission, WorkerRecord},
};

/// Longest time that a worker serves after its removal from the configuration.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// Returns the positions in `entries` of workers that served until their replacements were ready,
/// and are no longer needed.
pub(crate) fn no_longer_needed(entries: &[WorkerRecord], now: Moment) -> Vec<usize> {
    let over = |entry: &WorkerRecord| match entry.admission {
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
    if entry.health.state() != WorkerState::Ready || entry.view.only_prefills() {
        return false;
    }
    let stays = |other: &&WorkerRecord| {
        other.admission == WorkerAdmission::Open && !other.view.only_prefills()
    };
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

fn lists(entry: &WorkerRecord, id: &str) -> bool {
    entry.view.models.iter().any(|model| &*model.id == id)
        || entry.view.loras.iter().any(|lora| &*lora.id == id)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kv_blocks::{Role, WorkerId};
    use net::Clock;

    use super::*;
    use crate::{ServedModel, health::CheckOutcome};

    fn until() -> Moment {
        Moment::at(LONGEST)
    }

    fn entry(
        id: u32,
        model: &str,
        admission: WorkerAdmission,
        checked: Option<CheckOutcome>,
    ) -> WorkerRecord {
        let mut entry = WorkerRecord::for_tests(WorkerId(id), &Clock::system());
        let listed = ServedModel {
            id: model.into(),
            root: None,
            max_model_len: None,
            created: 0,
            owned_by: "t".into(),
        };
        Arc::make_mut(&mut entry.view).models = vec![listed];
        if let Some(check) = checked {
            entry.health.record_check(Moment::START, check);
        }
        entry.was_ready = checked == Some(CheckOutcome::Passed);
        entry.admission = admission;
        entry
    }

    fn replaced(model: &str) -> WorkerRecord {
        entry(
            0,
            model,
            WorkerAdmission::UntilReplaced(until()),
            Some(CheckOutcome::Passed),
        )
    }

    #[test]
    fn a_removed_worker_serves_until_its_replacement_is_ready_or_for_a_minute() {
        let fleet =
            |new: Option<CheckOutcome>| [replaced("m"), entry(1, "m", WorkerAdmission::Open, new)];
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
        let new = || entry(1, "m", WorkerAdmission::Open, None);
        let failed = entry(
            0,
            "m",
            WorkerAdmission::UntilReplaced(until()),
            Some(CheckOutcome::Failed),
        );
        assert_eq!(no_longer_needed(&[failed, new()], Moment::START), [0]);
        let mut prefills = replaced("m");
        Arc::make_mut(&mut prefills.view).role = Role::Prefill;
        assert_eq!(no_longer_needed(&[prefills, new()], Moment::START), [0]);
    }

    #[test]
    fn a_ready_worker_of_another_model_is_a_replacement_if_no_other_is_expected() {
        let other = |check| entry(1, "other", WorkerAdmission::Open, check);
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
