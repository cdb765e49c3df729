//! The load of each target from open reservations.
//!
//! Every dispatch is a reservation: counted when it is opened, moved from prefill to decode at its
//! first token, freed when it is closed. The ledger chooses no target and knows no HTTP; the caller
//! decides when a reservation is closed, and why. The reservations of other replicas count on their
//! targets as this router's own do (`peers`).
//!
//! **Invariant**: a reservation is freed exactly once, and when none is open every target's load is
//! exactly zero: all sums are integers.

mod account;
mod active;
mod blocks;
mod chunked_list;
mod decode_clock;
mod load;
mod peers;
mod prefill_queue;
mod reservation;
mod usage;

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::Arc,
    time::Duration,
};

use api::TargetLoad;
use foldhash::fast::FixedState;
use kv_blocks::{Moment, Target, WorkerId};
use kv_index::SpeculationId;

pub use blocks::SequenceBlocks;
pub use decode_clock::DecodeSample;
pub use load::{DispatchLoad, PredictedPrompt};
pub use reservation::{PrefillSample, SpeedSample};

pub(crate) use account::TargetAccount;
pub(crate) use active::{ActiveBlocks, KnownBlocks, NodeId, RetiredNodes};
pub(crate) use blocks::fingerprint;
pub(crate) use peers::LoadSource;
pub(crate) use reservation::PrefillEnd;

use self::{peers::PeerTable, reservation::Reservation, usage::UsageReading};
use crate::{
    ReplyMode, ReservationId,
    admission::{Footprint, LiveSets},
    replication::change::{LoadDigest, OpenLoad},
};

/// All targets' accounts and the open reservations. Memory is bounded by the open reservations and
/// the known targets.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    accounts: HashMap<Target, TargetAccount, FixedState>,
    active: ActiveBlocks,
    /// Share of each cache in use; at most one entry per target that a request with a busy
    /// threshold could go to.
    usage: HashMap<Target, UsageReading, FixedState>,
    open: OpenReservations,
    /// The blocks that each target used lately; followed only under `routing.admission` and
    /// `routing.fetch`.
    pub(crate) live: LiveSets,
    /// The digest of this router's own reservations.
    digest: LoadDigest,
    peers: PeerTable,
    issued: u64,
    /// Whether this router has made a decision.
    has_decided: bool,
}

/// The open reservations, by this router's numbers for them. Ordered, because a hash table that
/// grows moves all entries under the lock.
#[derive(Debug, Default)]
struct OpenReservations {
    own: BTreeMap<ReservationId, Reservation>,
    of_peers: BTreeMap<ReservationId, Reservation>,
}

impl OpenReservations {
    fn get_mut(&mut self, id: ReservationId) -> Option<&mut Reservation> {
        self.own.get_mut(&id).or_else(|| self.of_peers.get_mut(&id))
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
        self.has_decided = true;
        for target in targets {
            let account = self
                .accounts
                .entry(target)
                .or_insert_with(|| TargetAccount::with_cold_tokens(now, cold_tokens));
            account.record_backlog(now);
        }
    }

    /// Counts `load` on `target`.
    pub(crate) fn open(
        &mut self,
        now: Moment,
        target: Target,
        load: Arc<DispatchLoad>,
    ) -> ReservationId {
        let id = self.next_id();
        let reservation = self.count(now, id, target, load);
        self.open.own.insert(id, reservation);
        self.digest.add(id, false);
        id
    }

    fn next_id(&mut self) -> ReservationId {
        self.issued += 1;
        ReservationId(self.issued)
    }

    /// Counts `load` on `target` since `opened`; returns the reservation.
    fn count(
        &mut self,
        opened: Moment,
        id: ReservationId,
        target: Target,
        load: Arc<DispatchLoad>,
    ) -> Reservation {
        if self.live.is_enabled() {
            let footprint = Footprint::of(&load.blocks, load.prompt_tokens);
            self.live.open(opened, id, target, &footprint);
        }
        let (blocks_end, new_blocks) = self.active.add(target, &load.blocks);
        let account = self.accounts.entry(target).or_default();
        let alone = account.open(opened, id, &load, new_blocks + load.blocks.unshared);
        Reservation {
            target,
            load,
            blocks_end,
            opened,
            alone,
            decoding: false,
            first_token: false,
            decode_start: None,
            output_tokens: None,
            speculation: SpeculationId::default(),
        }
    }

    /// Moves a reservation from prefill to decode: its prompt is computed. `None`: nothing changed,
    /// as for unknown and repeated ids.
    pub(crate) fn first_token(&mut self, now: Moment, id: ReservationId) -> Option<PrefillEnd> {
        let reservation = self
            .open
            .own
            .get_mut(&id)
            .filter(|reservation| !reservation.decoding)?;
        reservation.first_token = true;
        start_decoding(&mut self.accounts, now, id, reservation);
        self.digest.advance(id);
        if reservation.load.reply == ReplyMode::Streamed {
            let account = self.accounts.get(&reservation.target);
            reservation.decode_start = account.map(TargetAccount::decode_clock);
        }
        let ms = now.ms_since(reservation.opened);
        let sample = (reservation.load.reply == ReplyMode::Streamed).then(|| SpeedSample {
            worker: reservation.target.worker,
            first_token_ms: Some(ms),
            prefill: reservation.prefill_sample(ms),
        });
        Some(PrefillEnd { sample })
    }

    /// Returns what a whole reply shows that is complete now, before its prompt was expected to be
    /// computed: the worker is faster than estimated, and the whole time is the better estimate.
    pub(crate) fn early_reply(&self, now: Moment, id: ReservationId) -> Option<SpeedSample> {
        let reservation = self.open.own.get(&id)?;
        let is_early = !reservation.decoding && reservation.load.reply == ReplyMode::Whole;
        let prefill = is_early
            .then(|| reservation.prefill_sample(now.ms_since(reservation.opened)))
            .flatten()?;
        Some(SpeedSample {
            worker: reservation.target.worker,
            first_token_ms: None,
            prefill: Some(prefill),
        })
    }

    /// Stores the length of a reservation's reply, of which the time is that of its decode steps.
    pub(crate) fn set_output_tokens(&mut self, id: ReservationId, tokens: u32) {
        if let Some(reservation) = self.open.own.get_mut(&id) {
            reservation.output_tokens = Some(tokens);
        }
    }

    /// Returns the decode steps of a reply that is complete now, with its worker; `None`: the sender
    /// of the request saw none of them, or its length is unknown.
    pub(crate) fn decode_sample(
        &mut self,
        now: Moment,
        id: ReservationId,
    ) -> Option<(WorkerId, DecodeSample)> {
        let reservation = self.open.own.get(&id)?;
        let (start, tokens) = reservation.decode_start.zip(reservation.output_tokens)?;
        let account = self.accounts.get_mut(&reservation.target)?;
        account.advance_clock(now);
        let sample = account.decode_clock().sample_since(&start, tokens)?;
        Some((reservation.target.worker, sample))
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
        if let Some(reservation) = self.open.own.get_mut(&id) {
            reservation.speculation = speculation;
        }
    }

    /// Returns the target of one of this router's own reservations; `None`: the id is unknown.
    pub(crate) fn target(&self, id: ReservationId) -> Option<Target> {
        self.open.own.get(&id).map(|reservation| reservation.target)
    }

    /// Frees a reservation; returns its speculation in the index. Unknown and repeated ids are
    /// ignored.
    pub(crate) fn close(&mut self, now: Moment, id: ReservationId) -> Option<SpeculationId> {
        let reservation = self.open.own.remove(&id)?;
        self.digest.remove(id, reservation.first_token);
        Some(self.free(now, id, reservation))
    }

    /// Takes the load of a reservation off its target; returns its speculation in the index.
    fn free(&mut self, now: Moment, id: ReservationId, reservation: Reservation) -> SpeculationId {
        let Reservation {
            target, ref load, ..
        } = reservation;
        self.live.end(now, id, target);
        let freed = self.active.remove(target, reservation.blocks_end);
        if let Some(account) = self.accounts.get_mut(&target) {
            if !reservation.decoding {
                account.prefills_mut().remove(now, id);
            }
            let blocks = freed + load.blocks.unshared;
            account.close(now, load, reservation.decoding, blocks);
            if account.is_removable() {
                self.accounts.remove(&target);
            }
        }
        reservation.speculation
    }

    /// Returns this router's own open reservations after `after`, in the order of their ids, at
    /// most `most`.
    pub(crate) fn open_loads(
        &self,
        now: Moment,
        after: ReservationId,
        most: usize,
    ) -> Vec<OpenLoad> {
        let later = (Bound::Excluded(after), Bound::Unbounded);
        let open = self.open.own.range(later).take(most);
        open.map(|(id, reservation)| OpenLoad {
            id: *id,
            target: Some(reservation.target),
            load: Arc::clone(&reservation.load),
            first_token: reservation.first_token,
            age_ms: now.ms_since(reservation.opened),
        })
        .collect()
    }

    /// Returns the digest of this router's own open reservations.
    pub(crate) fn own_digest(&self) -> LoadDigest {
        self.digest
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

    /// Returns memory that is no longer used, to be freed without the router's lock.
    pub(crate) fn take_retired(&mut self) -> Vec<RetiredNodes> {
        let mut retired = self.active.take_retired();
        retired.extend(self.live.take_retired());
        retired
    }

    /// Returns the leading blocks of `blocks` that are active, by target.
    pub(crate) fn known_blocks(&self, blocks: &SequenceBlocks) -> KnownBlocks {
        self.active.known(blocks)
    }

    pub(crate) fn load(&self, target: Target) -> TargetLoad {
        self.account(target)
            .map_or_else(TargetLoad::default, TargetAccount::load)
    }

    /// Returns the number of this router's own open reservations.
    pub(crate) fn open_reservations(&self) -> usize {
        self.open.own.len()
    }

    /// Drops a worker's accounts, each one as soon as it has nothing in flight.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.accounts.retain(|target, account| {
            account.forgotten |= target.worker == worker;
            !account.is_removable()
        });
        self.usage.retain(|target, _| target.worker != worker);
        self.live.forget(worker);
    }
}

fn pass_account(account: &mut TargetAccount, open: &mut OpenReservations, now: Moment) {
    for id in account.prefills_mut().expire(now) {
        if let Some(reservation) = open.get_mut(id) {
            reservation.decoding = true;
            account.decode(now, &reservation.load);
        }
    }
}

/// Moves a reservation from prefill to decode, unless its estimate has done so.
fn start_decoding(
    accounts: &mut HashMap<Target, TargetAccount, FixedState>,
    now: Moment,
    id: ReservationId,
    reservation: &mut Reservation,
) {
    if reservation.decoding {
        return;
    }
    reservation.decoding = true;
    if let Some(account) = accounts.get_mut(&reservation.target) {
        account.prefills_mut().remove(now, id);
        account.decode(now, &reservation.load);
    }
}
