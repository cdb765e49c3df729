//! The writer's state behind its lock.

use std::mem;

use crate::{atomic::Mutex, lookup::SharedIndex, state::IndexState};

/// Lock of the writer's state.
///
/// A panic under the lock leaves the state, and the structure that lookups read, half changed:
/// lookups of a run in the middle of a change wait for its end. So the state is abandoned: from
/// then on lookups credit no target, and changes do nothing. Requests are then routed by load
/// alone, and none fails.
#[derive(Debug)]
pub(crate) struct IndexLock(Mutex<IndexState>);

impl IndexLock {
    pub(crate) fn new(state: IndexState) -> Self {
        Self(Mutex::new(state))
    }

    /// Runs a function on the state; does nothing after a panic.
    pub(crate) fn with<R: Default>(
        &self,
        core: &SharedIndex,
        act: impl FnOnce(&mut IndexState, &SharedIndex) -> R,
    ) -> R {
        let mut state = self.0.lock();
        if core.heads.abandoned() {
            return R::default();
        }
        let unfinished = PanicGuard(core);
        let done = act(&mut state, core);
        mem::forget(unfinished);
        done
    }
}

/// Guard that is dropped only while a panic unwinds.
struct PanicGuard<'a>(&'a SharedIndex);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::Arc,
    };

    use kv_blocks::{
        BlockSize, DpRank, Moment, Namespace, PromptIdentity, SequenceHash, Target, Tier, WorkerId,
    };

    use crate::{IndexSettings, KvIndex, UpdateOutcome};

    #[test]
    fn after_a_panic_within_a_change_lookups_credit_no_target_and_changes_do_nothing() {
        let index = KvIndex::new(IndexSettings::default());
        let target = Target {
            worker: WorkerId(1),
            rank: DpRank(0),
        };
        index.register(target, Arc::from("qwen"));
        let block_size = BlockSize::new(16).unwrap();
        let namespace = Namespace {
            model: Arc::from("qwen"),
            lora: None,
            salt: None,
            block_size,
            identity: PromptIdentity::Tokens,
        };
        let (chain, other) = ([SequenceHash(1), SequenceHash(2)], [SequenceHash(3)]);
        index.store_hashes(target, &namespace, None, &chain, Tier::Device);
        index.store_hashes(target, &namespace, None, &other, Tier::Device);
        let credited =
            |chain: &[SequenceHash]| index.lookup(&namespace, chain, Moment::START).len();
        assert_eq!((credited(&chain), credited(&other)), (1, 1));

        let panicked = catch_unwind(AssertUnwindSafe(|| {
            index.with(|_, core| -> () {
                core.heads.begin(&core.body, 0);
                panic!("in the middle of a change");
            });
        }));

        assert!(panicked.is_err());
        assert_eq!((credited(&chain), credited(&other)), (0, 0));
        let stored = index.store_hashes(target, &namespace, None, &[SequenceHash(4)], Tier::Device);
        assert_eq!(
            (stored, credited(&[SequenceHash(4)])),
            (UpdateOutcome::default(), 0)
        );
        assert!(index.save(&mut Vec::new()).is_err() && index.load(&mut &[][..]).is_err());
    }
}
