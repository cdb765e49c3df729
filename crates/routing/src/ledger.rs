//! What each target has been given and not yet finished.
//!
//! Every dispatch is a reservation: counted when it is opened, moved from prefill to decode at its first token, freed
//! when it is closed. Nothing here chooses, and nothing here knows of HTTP: who closes a reservation, and why, is the
//! caller's business.
//!
//! **Invariant**: a reservation is freed exactly once, and when none is open every target's load is exactly zero: all
//! sums are integers.

mod blocks;

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use kv_blocks::{Moment, Target, WorkerId};
use kv_index::Promised;

pub(crate) use blocks::SequenceBlocks;

use self::blocks::COMPARED_BLOCKS;
use crate::{Answer, ReservationId, decayed::Decayed};

/// Load of one target, as counted from our own decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetLoad {
    /// Requests sent and not done.
    pub in_flight: u32,
    /// Prompt tokens still to be computed: of requests without a first token.
    pub queued_prefill_tokens: u64,
    /// Sequences that have their first token.
    pub decode_sequences: u32,
    /// Blocks of all active sequences, shared prefixes counted once.
    pub decode_blocks: u64,
}

/// Dispatched prefill work counts towards utilisation this long.
const WORK_MEMORY: Duration = Duration::from_secs(30);

/// A target's mean backlog reaches back this far.
const BACKLOG_MEMORY: Duration = Duration::from_secs(120);

/// Cold tokens given to a target count towards its share this long.
const COLD_MEMORY: Duration = Duration::from_secs(300);

/// A first token tells of its worker's speed if no more than this share of its time went to sequences that ran beside.
const INTERLEAVED_MOST: f64 = 0.5;

/// A moment at which a backlog has shrunk to some length is told so much late, or rounding would find it a little longer.
const LATE_MS: f64 = 0.1;

/// What a dispatch adds to a target.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) target: Target,
    pub(crate) prompt_tokens: u32,
    pub(crate) uncached_tokens: u32,
    /// Estimated time to compute the uncached tokens.
    pub(crate) prefill_ms: f64,
    /// Estimated time that running sequences take from its prefill.
    pub(crate) interleave_ms: f64,
    pub(crate) blocks: SequenceBlocks,
    /// Who will see its first token.
    pub(crate) answer: Answer,
}

/// A first token that whoever sent the request saw come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FirstToken {
    pub(crate) worker: WorkerId,
    /// Since it was decided.
    pub(crate) ms: f64,
    /// What it says of the worker's speed, if the target had nothing else to compute.
    pub(crate) alone: Option<PrefillSample>,
}

/// A prefill that nothing stood before: what a worker's speed is learned from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PrefillSample {
    /// Tokens that were there already.
    pub(crate) start: u32,
    /// Tokens that were computed.
    pub(crate) tokens: u32,
    pub(crate) ms: f64,
}

/// All targets' accounts and the open reservations. Memory is bounded by the open reservations and the known targets.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    accounts: HashMap<Target, Account>,
    open: HashMap<ReservationId, Reservation>,
    issued: u64,
}

#[derive(Debug)]
struct Reservation {
    load: Load,
    opened: Moment,
    /// Nothing was waiting for prefill when it was opened.
    alone: bool,
    decoding: bool,
    /// What the index expects because of it.
    promised: Promised,
}

impl Ledger {
    /// Cold work that a target without an account counts as having: one that joins a running fleet starts with the
    /// others' mean, which fades if it gets none, so it is filled over minutes, not flooded at once.
    pub(crate) fn newcomer_cold_tokens(&self, now: Moment, targets: impl Iterator<Item = Target>) -> f64 {
        let mean = |accounts: &mut dyn Iterator<Item = &Account>| {
            let count = |(sum, known), account: &Account| (sum + account.cold_tokens(now), known + 1u32);
            let (sum, known) = accounts.fold((0.0, 0), count);
            (known > 0).then(|| sum / f64::from(known))
        };
        // A request that only newcomers may take says nothing of the fleet.
        let asked = mean(&mut targets.filter_map(|target| self.account(target)));
        asked.or_else(|| mean(&mut self.accounts.values())).unwrap_or(0.0)
    }

    /// Opens accounts for targets not seen before, each with so much cold work behind it.
    pub(crate) fn admit(&mut self, now: Moment, targets: impl Iterator<Item = Target>, cold_tokens: f64) {
        for target in targets {
            self.accounts.entry(target).or_insert_with(|| {
                let mut account = Account::default();
                account.cold_tokens.add(now, cold_tokens);
                account
            });
        }
    }

    /// Takes note of the backlogs of these targets, for their means.
    pub(crate) fn note_backlogs(&mut self, now: Moment, targets: impl Iterator<Item = Target>) {
        for target in targets {
            if let Some(account) = self.accounts.get_mut(&target) {
                let backlog_ms = account.backlog_ms(now);
                account.mean_backlog.note(now, backlog_ms);
            }
        }
    }

    /// Counts `load` on its target.
    pub(crate) fn open(&mut self, now: Moment, load: Load) -> ReservationId {
        self.issued += 1;
        let id = ReservationId(self.issued);
        let account = self.accounts.entry(load.target).or_default();
        let alone = account.queue.is_empty();
        if alone {
            account.head_since = now;
        }
        account.in_flight += 1;
        let us = whole_us(load.prefill_ms);
        account.queue.insert(id, Queued { tokens: load.uncached_tokens, us, answer: load.answer });
        account.silent += usize::from(load.answer == Answer::Whole);
        account.queued_tokens += u64::from(load.uncached_tokens);
        account.queued_us += us;
        account.last_dispatch = self.issued;
        account.work_ms.add(now, load.prefill_ms);
        account.cold_tokens.add(now, f64::from(load.uncached_tokens));
        account.add_blocks(&load.blocks);
        self.open.insert(id, Reservation { load, opened: now, alone, decoding: false, promised: Promised::default() });
        id
    }

    /// The prompt is computed. Unknown and repeated ids are ignored.
    pub(crate) fn first_token(&mut self, now: Moment, id: ReservationId) -> Option<FirstToken> {
        let reservation = self.open.get_mut(&id).filter(|reservation| !reservation.decoding)?;
        reservation.decoding = true;
        let load = &reservation.load;
        let account = self.accounts.get_mut(&load.target)?;
        account.dequeue(now, id);
        account.decode_sequences += 1;
        account.decode_tokens += u64::from(load.prompt_tokens);
        let ms = now.ms_since(reservation.opened);
        let start = load.prompt_tokens.saturating_sub(load.uncached_tokens);
        let prefill = PrefillSample { start, tokens: load.uncached_tokens, ms: (ms - load.interleave_ms).max(0.0) };
        // Where most of the time went to others, what is left tells of an estimate, not of the worker.
        let tells = load.interleave_ms <= INTERLEAVED_MOST * ms;
        (load.answer == Answer::Streamed).then(|| FirstToken {
            worker: load.target.worker,
            ms,
            alone: (reservation.alone && tells).then_some(prefill),
        })
    }

    /// Moves prefills to decode whose end nobody will announce, once their estimated time is over. Without it the prompt
    /// of a reply that is not streamed would stand in the queue until the reply is complete.
    pub(crate) fn pass(&mut self, now: Moment) {
        for account in self.accounts.values_mut() {
            for id in account.pass(now) {
                if let Some(reservation) = self.open.get_mut(&id) {
                    reservation.decoding = true;
                    account.decode_sequences += 1;
                    account.decode_tokens += u64::from(reservation.load.prompt_tokens);
                }
            }
        }
    }

    /// Keeps with a reservation what the index expects because of it.
    pub(crate) fn promised(&mut self, id: ReservationId, promised: Promised) {
        if let Some(reservation) = self.open.get_mut(&id) {
            reservation.promised = promised;
        }
    }

    /// Where a reservation is; `None`: there is none of that id.
    pub(crate) fn target(&self, id: ReservationId) -> Option<Target> {
        self.open.get(&id).map(|reservation| reservation.load.target)
    }

    /// Frees a reservation; returns what the index expects because of it. Unknown and repeated ids are ignored.
    pub(crate) fn close(&mut self, now: Moment, id: ReservationId) -> Option<Promised> {
        let reservation = self.open.remove(&id)?;
        let load = &reservation.load;
        let account = self.accounts.get_mut(&load.target)?;
        account.in_flight -= 1;
        if reservation.decoding {
            account.decode_sequences -= 1;
            account.decode_tokens -= u64::from(load.prompt_tokens);
        } else {
            account.dequeue(now, id);
        }
        account.remove_blocks(&load.blocks);
        if account.forgotten && account.in_flight == 0 {
            self.accounts.remove(&load.target);
        }
        Some(reservation.promised)
    }

    pub(crate) fn account(&self, target: Target) -> Option<&Account> {
        self.accounts.get(&target)
    }

    /// Whether some target has no more than this to compute.
    pub(crate) fn anyone_below(&self, now: Moment, backlog: Duration) -> bool {
        let most_ms = backlog.as_secs_f64() * 1e3;
        self.accounts.values().any(|account| account.backlog_ms(now) <= most_ms)
    }

    /// When the first of the targets with more to compute will have no more than this, if nobody says so before.
    pub(crate) fn next_below(&self, now: Moment, backlog: Duration) -> Option<Moment> {
        let most_ms = backlog.as_secs_f64() * 1e3;
        self.accounts.values().filter_map(|account| account.falls_to(now, most_ms)).min()
    }

    /// Leading blocks of `blocks` that are active on a target.
    pub(crate) fn known_blocks(&self, target: Target, blocks: &SequenceBlocks) -> usize {
        self.account(target).map_or(0, |account| account.known_blocks(blocks))
    }

    pub(crate) fn load(&self, target: Target) -> TargetLoad {
        self.account(target).map_or_else(TargetLoad::default, Account::load)
    }

    pub(crate) fn open_reservations(&self) -> usize {
        self.open.len()
    }

    /// Drops a worker's accounts, each as soon as nothing of it is in flight.
    pub(crate) fn forget(&mut self, worker: WorkerId) {
        self.accounts.retain(|target, account| {
            account.forgotten |= target.worker == worker;
            !(account.forgotten && account.in_flight == 0)
        });
    }
}

/// A mean over time that forgets.
#[derive(Clone, Copy, Debug, Default)]
struct TimeMean {
    value: f64,
    at: Moment,
}

impl TimeMean {
    /// It was `value` since it was noted last.
    fn note(&mut self, now: Moment, value: f64) {
        let kept = (-(now.since(self.at).as_secs_f64() / BACKLOG_MEMORY.as_secs_f64())).exp();
        *self = Self { value: self.value * kept + value * (1.0 - kept), at: now.max(self.at) };
    }
}

/// One target's load.
#[derive(Debug)]
pub(crate) struct Account {
    in_flight: u32,
    /// Prefills without a first token, in the order of dispatch.
    queue: BTreeMap<ReservationId, Queued>,
    queued_tokens: u64,
    queued_us: u64,
    /// Those of `queue` whose first token nobody will see.
    silent: usize,
    /// When the first of `queue` is believed to have started.
    head_since: Moment,
    decode_sequences: u32,
    decode_tokens: u64,
    /// Compared blocks of open reservations, with how many hold each. Prefixes of its members are members.
    active: HashMap<u64, u32>,
    uncompared: u64,
    mean_backlog: TimeMean,
    last_dispatch: u64,
    work_ms: Decayed,
    cold_tokens: Decayed,
    forgotten: bool,
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    tokens: u32,
    us: u64,
    answer: Answer,
}

impl Default for Account {
    fn default() -> Self {
        Self {
            in_flight: 0,
            queue: BTreeMap::new(),
            queued_tokens: 0,
            queued_us: 0,
            silent: 0,
            head_since: Moment::START,
            decode_sequences: 0,
            decode_tokens: 0,
            active: HashMap::new(),
            uncompared: 0,
            last_dispatch: 0,
            mean_backlog: TimeMean::default(),
            work_ms: Decayed::over(WORK_MEMORY),
            cold_tokens: Decayed::over(COLD_MEMORY),
            forgotten: false,
        }
    }
}

impl Account {
    pub(crate) fn load(&self) -> TargetLoad {
        TargetLoad {
            in_flight: self.in_flight,
            queued_prefill_tokens: self.queued_tokens,
            decode_sequences: self.decode_sequences,
            decode_blocks: self.active.len() as u64 + self.uncompared,
        }
    }

    /// Estimated time until the queued prefills are computed. Prefills run in order, so what passed since the first one
    /// started counts, up to nearly all of its own estimate: it has not answered yet.
    pub(crate) fn backlog_ms(&self, now: Moment) -> f64 {
        self.queued_us as f64 / 1e3 - self.ran_ms(now)
    }

    /// When the backlog will be no more than this, if it is more now; `None`: not before a first token.
    fn falls_to(&self, now: Moment, most_ms: f64) -> Option<Moment> {
        let excess_ms = self.backlog_ms(now) - most_ms;
        let then = now + Duration::from_secs_f64((excess_ms.max(0.0) + LATE_MS) / 1e3);
        (excess_ms > 0.0 && self.backlog_ms(then) <= most_ms).then_some(then)
    }

    /// What is taken to be computed of the first prefill.
    fn ran_ms(&self, now: Moment) -> f64 {
        let Some((_, head)) = self.queue.first_key_value() else { return 0.0 };
        now.ms_since(self.head_since).min(0.95 * head.us as f64 / 1e3)
    }

    /// Takes out the prefills whose end nobody will announce, once their estimated time and that of all before them is
    /// over. One that was to be announced and never was does not keep back those behind it.
    fn pass(&mut self, now: Moment) -> Vec<ReservationId> {
        if self.silent == 0 {
            return Vec::new();
        }
        let mut over = self.head_since;
        let over_by_now = |(id, queued): (&ReservationId, &Queued)| {
            over = over + Duration::from_micros(queued.us);
            (over <= now).then_some((*id, *queued))
        };
        let passed = self.queue.iter().map_while(over_by_now).filter(|(_, queued)| queued.answer == Answer::Whole);
        let passed: Vec<_> = passed.collect();
        for (id, queued) in &passed {
            self.unqueue(*id);
            // Its time was taken from what was queued with it: the rest is to end when it was to end before.
            self.head_since = self.head_since + Duration::from_micros(queued.us);
        }
        passed.into_iter().map(|(id, _)| id).collect()
    }

    /// Prompt tokens of the sequences that are generating.
    pub(crate) fn decode_tokens(&self) -> u64 {
        self.decode_tokens
    }

    /// Mean backlog lately, by time.
    pub(crate) fn mean_backlog_ms(&self) -> f64 {
        self.mean_backlog.value
    }

    /// Number of the latest reservation here; 0 if there was none.
    pub(crate) fn last_dispatch(&self) -> u64 {
        self.last_dispatch
    }

    /// Prefill time dispatched lately.
    pub(crate) fn work_ms(&self, now: Moment) -> f64 {
        self.work_ms.at(now)
    }

    /// Uncached tokens dispatched lately.
    pub(crate) fn cold_tokens(&self, now: Moment) -> f64 {
        self.cold_tokens.at(now)
    }

    /// Leading blocks of `blocks` that are active here.
    fn known_blocks(&self, blocks: &SequenceBlocks) -> usize {
        // Members' prefixes are members, so the active ones are a prefix of the chain.
        blocks.compared().partition_point(|hash| self.active.contains_key(&blocks.key(*hash)))
    }

    fn add_blocks(&mut self, blocks: &SequenceBlocks) {
        for key in blocks.keys() {
            *self.active.entry(key).or_insert(0) += 1;
        }
        self.uncompared += blocks.uncompared();
    }

    fn remove_blocks(&mut self, blocks: &SequenceBlocks) {
        for key in blocks.keys() {
            if let Some(holders) = self.active.get_mut(&key) {
                *holders -= 1;
                if *holders == 0 {
                    self.active.remove(&key);
                }
            }
        }
        self.uncompared -= blocks.uncompared();
        if self.active.is_empty() {
            // A burst of long prompts must not leave its table behind.
            self.active.shrink_to(COMPARED_BLOCKS);
        }
    }

    fn dequeue(&mut self, now: Moment, id: ReservationId) {
        if self.unqueue(id) {
            // Whoever ended, the engine is believed to be at the start of the next one.
            self.head_since = now;
        }
    }

    fn unqueue(&mut self, id: ReservationId) -> bool {
        let Some(queued) = self.queue.remove(&id) else { return false };
        self.queued_tokens -= u64::from(queued.tokens);
        self.queued_us -= queued.us;
        self.silent -= usize::from(queued.answer == Answer::Whole);
        true
    }
}

fn whole_us(ms: f64) -> u64 {
    // Bounded on both sides, so the cast is exact enough; an hour is longer than any prefill.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to an hour")]
    let us = (ms * 1e3).clamp(0.0, 3.6e9) as u64;
    us
}
