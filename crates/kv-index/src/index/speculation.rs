//! Speculative and predicted entries.

use std::time::Duration;

use kv_blocks::{Moment, Namespace, SequenceHash, Target};

use super::{KvIndex, nanoseconds};
use crate::{
    SpeculationId,
    state::{ExpectedChain, SpeculationKind},
};

impl KvIndex {
    /// Adds speculative entries for `chain` on `target` until `now + ttl`, because a request was
    /// just sent there whose events will confirm them. Blocks that the target is known to hold are
    /// left alone, unless the target is untrusted ([`KvIndex::trust`]).
    pub fn speculate(
        &self,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
        ttl: Duration,
    ) -> SpeculationId {
        let expected = ExpectedChain {
            kind: SpeculationKind::Speculative,
            namespace,
            hashes: chain,
            since: nanoseconds(now),
            ttl,
        };
        self.with(|books, core| books.speculate(core, target, expected))
    }

    /// Adds predicted entries, for a target without trustworthy events: nothing will confirm them,
    /// so `ttl` is longer. Only the statistics tell the two kinds apart.
    pub fn predict(
        &self,
        target: Target,
        namespace: &Namespace,
        chain: &[SequenceHash],
        now: Moment,
        ttl: Duration,
    ) -> SpeculationId {
        let expected = ExpectedChain {
            kind: SpeculationKind::Predicted,
            namespace,
            hashes: chain,
            since: nanoseconds(now),
            ttl,
        };
        self.with(|books, core| books.speculate(core, target, expected))
    }

    /// Takes back the entries of [`KvIndex::speculate`] or [`KvIndex::predict`], because the target
    /// did not take the request. Entries confirmed since, or renewed for another request, stay.
    pub fn retract(&self, promised: SpeculationId) {
        self.with(|books, core| books.retract(core, &promised));
    }

    /// Removes expired unconfirmed entries. Lookups never count them: this call frees their memory
    /// and corrects [`KvIndex::stats`]. Also finishes a pruning that is under way.
    pub fn expire(&self, now: Moment) {
        while self.with(|books, core| books.sweep_expired(core, nanoseconds(now))) {}
    }
}
