//! The load of each target from open reservations.
//!
//! Every dispatch is a reservation: counted when it is opened, moved from prefill to decode at its
//! first token, freed when it is closed. The ledger chooses no target and knows no HTTP; the caller
//! decides when a reservation is closed, and why.
//!
//! **Invariant**: a reservation is freed exactly once, and when none is open every target's load is
//! exactly zero: all sums are integers.

mod account;
mod active;
mod blocks;
mod chunked_list;
mod load;
mod prefill_queue;
mod usage;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use api::TargetLoad;
use foldhash::fast::FixedState;
use kv_blocks::{Moment, Target, WorkerId};
use kv_index::SpeculationId;

pub(crate) use account::TargetAccount;
pub(crate) use active::KnownBlocks;
pub(crate) use blocks::SequenceBlocks;
pub(crate) use load::DispatchLoad;

use self::{
    active::{ActiveBlocks, NodeId},
    usage::UsageReading,
};
use crate::{PromptKnowledge, ReplyMode, ReservationId};

/// A first token is a sample of its worker's speed if at most this share of its time went to
/// concurrent sequences.
const INTERLEAVED_MOST: f64 = 0.5;

/// A first token that the sender of the request saw.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FirstToken {
    pub(crate) worker: WorkerId,
    /// Milliseconds since the decision.
    pub(crate) ms: f64,
    /// The sample of the worker's speed, if it is one.
    pub(crate) alone: Option<PrefillSample>,
}

/// A prefill that did not wait for others: a sample of a worker's speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PrefillSample {
    /// Tokens that were cached already.
    pub(crate) start: u32,
    /// Tokens that were computed.
    pub(crate) tokens: u32,
    pub(crate) ms: f64,
}

/// All targets' accounts and the open reservations. Memory is bounded by the open reservations and
/// the known targets.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    accounts: HashMap<Target, TargetAccount, FixedState>,
    active: ActiveBlocks,
    /// Share of each cache in use; at most one entry per target that a request with a busy
    /// threshold could go to.
    usage: HashMap<Target, UsageReading, FixedState>,
    /// Ordered, because a hash table that grows moves all entries under the lock.
    open: BTreeMap<ReservationId, Reservation>,
    issued: u64,
}

#[derive(Debug)]
struct Reservation {
    load: DispatchLoad,
    /// The end of its blocks among the active ones.
    blocks_end: Option<NodeId>,
    opened: Moment,
    /// No prefill was waiting when it was opened.
    alone: bool,
    decoding: bool,
    /// The blocks that the index expects because of it.
    speculation: SpeculationId,
}

impl Reservation {
    /// Returns the sample of the worker's speed if the prompt was computed in `ms` from the
    /// decision on. `None`: others were computed before it, most of the time went to other
    /// sequences, so that the remainder measures an estimate, or the cached part is unknown.
    fn prefill_sample(&self, ms: f64) -> Option<PrefillSample> {
        let load = &self.load;
        let is_representative =
            load.interleave_ms <= INTERLEAVED_MOST * ms && load.prompt == PromptKnowledge::Blocks;
        (self.alone && is_representative).then(|| PrefillSample {
            start: load.prompt_tokens.saturating_sub(load.uncached_tokens),
            tokens: load.uncached_tokens,
            ms: (ms - load.interleave_ms).max(0.0),
        })
    }
}

impl Ledger {
    /// Returns the cold work that a target without an account is credited with: a target that joins
    /// a running fleet starts with the others' mean. The mean fades if the target gets no work, so
    /// the target is filled over minutes, not flooded at once.
    pub(crate) fn newcomer_cold_tokens(
        &self,
        now: Moment,
        targets: impl Iterator<Item = Target> + Clone,
    ) -> f64 {
        if targets
            .clone()
            .all(|target| self.accounts.contains_key(&target))
        {
            return 0.0;
        }
        let mean = |accounts: &mut dyn Iterator<Item = &TargetAccount>| {
            let count = |(sum, known), account: &TargetAccount| {
                (sum + account.cold_tokens(now), known + 1u32)
            };
            let (sum, known) = accounts.fold((0.0, 0), count);
            (known > 0).then(|| sum / f64::from(known))
        };
        // A request for which only newcomers are eligible does not represent the fleet.
        let eligible = mean(&mut targets.filter_map(|target| self.account(target)));
        eligible
            .or_else(|| mean(&mut self.accounts.values()))
            .unwrap_or(0.0)
    }

    /// Records the backlogs of these targets for their means; opens accounts for new targets, each
    /// with this much cold work.
    pub(crate) fn record_backlogs(
        &mut self,
        now: Moment,
        targets: impl Iterator<Item = Target>,
        cold_tokens: f64,
    ) {
        for target in targets {
            let account = self
                .accounts
                .entry(target)
                .or_insert_with(|| TargetAccount::with_cold_tokens(now, cold_tokens));
            account.record_backlog(now);
        }
    }

    /// Counts `load` on its target.
    pub(crate) fn open(&mut self, now: Moment, load: DispatchLoad) -> ReservationId {
        self.issued += 1;
        let id = ReservationId(self.issued);
        let (blocks_end, new_blocks) = self.active.add(load.target, &load.blocks);
        let account = self.accounts.entry(load.target).or_default();
        let alone = account.open(now, id, &load, new_blocks + load.blocks.unshared);
        let speculation = SpeculationId::default();
        self.open.insert(
            id,
            Reservation {
                load,
                blocks_end,
                opened: now,
                alone,
                decoding: false,
                speculation,
            },
        );
        id
    }

    /// Moves a reservation from prefill to decode: its prompt is computed. Unknown and repeated ids
    /// are ignored.
    pub(crate) fn first_token(&mut self, now: Moment, id: ReservationId) -> Option<FirstToken> {
        let reservation = self
            .open
            .get_mut(&id)
            .filter(|reservation| !reservation.decoding)?;
        reservation.decoding = true;
        let load = &reservation.load;
        let account = self.accounts.get_mut(&load.target)?;
        account.prefills_mut().remove(now, id);
        account.decode(load);
        let ms = now.ms_since(reservation.opened);
        (load.answer == ReplyMode::Streamed).then(|| FirstToken {
            worker: load.target.worker,
            ms,
            alone: reservation.prefill_sample(ms),
        })
    }

    /// Returns what a whole reply shows that is complete now, before its prompt was expected to be
    /// computed: the worker is faster than estimated, and the whole time is the better estimate.
    pub(crate) fn early_reply(&self, now: Moment, id: ReservationId) -> Option<PrefillSample> {
        let reservation = self.open.get(&id)?;
        let is_early = !reservation.decoding && reservation.load.answer == ReplyMode::Whole;
        is_early
            .then(|| reservation.prefill_sample(now.ms_since(reservation.opened)))
            .flatten()
    }

    /// Moves prefills whose end is never announced to decode once their estimated time is over.
    /// Otherwise the prompt of a reply that is not streamed would stay in the backlog until the
    /// reply is complete.
    pub(crate) fn expire_prefills(&mut self, now: Moment) {
        for account in self.accounts.values_mut() {
            pass_account(account, &mut self.open, now);
        }
    }

    /// Does so for these targets only.
    pub(crate) fn expire_prefills_on(
        &mut self,
        now: Moment,
        targets: impl Iterator<Item = Target>,
    ) {
        for target in targets {
            if let Some(account) = self
                .accounts
                .get_mut(&target)
                .filter(|account| account.prefills().has_unannounced())
            {
                pass_account(account, &mut self.open, now);
            }
        }
    }

    /// Stores with a reservation the speculation that the index holds because of it.
    pub(crate) fn set_speculation(&mut self, id: ReservationId, speculation: SpeculationId) {
        if let Some(reservation) = self.open.get_mut(&id) {
            reservation.speculation = speculation;
        }
    }

    /// Returns a reservation's target; `None`: the id is unknown.
    pub(crate) fn target(&self, id: ReservationId) -> Option<Target> {
        self.open
            .get(&id)
            .map(|reservation| reservation.load.target)
    }

    /// Frees a reservation; returns its speculation in the index. Unknown and repeated ids are
    /// ignored.
    pub(crate) fn close(&mut self, now: Moment, id: ReservationId) -> Option<SpeculationId> {
        let reservation = self.open.remove(&id)?;
        let load = &reservation.load;
        let account = self.accounts.get_mut(&load.target)?;
        if !reservation.decoding {
            account.prefills_mut().remove(now, id);
        }
        let freed = self.active.remove(load.target, reservation.blocks_end);
        account.close(load, reservation.decoding, freed + load.blocks.unshared);
        if account.is_removable() {
            self.accounts.remove(&load.target);
        }
        Some(reservation.speculation)
    }

    pub(crate) fn account(&self, target: Target) -> Option<&TargetAccount> {
        self.accounts.get(&target)
    }

    /// Returns whether a target has at most this backlog.
    pub(crate) fn is_below(&self, now: Moment, target: Target, backlog: Duration) -> bool {
        self.account(target)
            .is_none_or(|account| account.backlog_ms(now) <= backlog.as_secs_f64() * 1e3)
    }

    /// Returns when a target's backlog falls to this value if no call changes it before.
    pub(crate) fn falls_below_at(
        &self,
        now: Moment,
        target: Target,
        backlog: Duration,
    ) -> Option<Moment> {
        self.account(target)?
            .prefills()
            .falls_below_at(now, backlog.as_secs_f64() * 1e3)
    }

    /// Records the share of its cache in use that an engine reports; `false`: nothing changed.
    pub(crate) fn observe_usage(
        &mut self,
        target: Target,
        ratio: f64,
        total_blocks: Option<u32>,
    ) -> bool {
        if self
            .usage
            .get(&target)
            .is_some_and(|known| known.is(ratio, total_blocks))
        {
            return false;
        }
        let load = self.load(target);
        self.usage
            .insert(target, UsageReading::new(ratio, total_blocks, load));
        true
    }

    /// Returns whether more of a target's cache is in use than this; false without a figure.
    pub(crate) fn is_above(&self, target: Target, threshold: f64) -> bool {
        self.usage
            .get(&target)
            .is_some_and(|reading| reading.estimate(self.load(target)) > threshold)
    }

    /// Returns the leading blocks of `blocks` that are active, by target.
    pub(crate) fn known_blocks(&self, blocks: &SequenceBlocks) -> KnownBlocks {
        self.active.known(blocks)
    }

    pub(crate) fn load(&self, target: Target) -> TargetLoad {
        self.account(target)
            .map_or_else(TargetLoad::default, TargetAccount::load)
    }

    pub(crate) fn open_reservations(&self) -> usize {
        self.open.len()
    }

    /// Drops a worker's accounts, each one as soon as it has nothing in flight.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.accounts.retain(|target, account| {
            account.forgotten |= target.worker == worker;
            !account.is_removable()
        });
        self.usage.retain(|target, _| target.worker != worker);
    }
}

fn pass_account(
    account: &mut TargetAccount,
    open: &mut BTreeMap<ReservationId, Reservation>,
    now: Moment,
) {
    for id in account.prefills_mut().expire(now) {
        if let Some(reservation) = open.get_mut(&id) {
            reservation.decoding = true;
            account.decode(&reservation.load);
        }
    }
}
