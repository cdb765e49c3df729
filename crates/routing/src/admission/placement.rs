//! Admission as part of a choice: which of the candidates have room, which lend time, and how long a
//! request will wait that finds neither; and the blocks in use that a read would displace.

use std::{iter, ops::Range};

use kv_blocks::{Moment, Target};

use super::{
    Footprint, RoomShortage, RoomWait,
    budget::{LendingTarget, LendingTerms, is_full},
    expected_wait::expected_wait,
    room::{COLD_TOKENS, missing_blocks},
};
use crate::{
    CacheSource, Candidate, Job, RoutingSettings, SessionMode, choice::Choice, ledger::KnownBlocks,
    policy::rule::PolicyCandidate, queue::RoomPlace, state::RouterState,
};

/// Whether a choice is limited to targets with room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoomRule {
    /// Any target will do.
    Ignored,
    /// Only a target on which the request is warm or has room.
    Required,
}

/// The share of the targets' time that an expected wait is computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LentShare {
    /// The one that they lend now.
    Wanted,
    /// The most that they lend: it grows with the requests that wait.
    Most,
}

/// The blocks of a request beside those that a target used lately.
#[derive(Clone, Copy, Debug)]
struct RoomTest {
    live_blocks: u64,
    capacity: u64,
    needed_blocks: u64,
    reply_blocks: f64,
}

impl RoomTest {
    /// Returns by how many blocks the request does not fit, if above zero, while this share of the live
    /// blocks counts.
    fn missing_blocks(&self, share: f64) -> f64 {
        missing_blocks(
            share * self.live_blocks as f64,
            self.needed_blocks as f64 + self.reply_blocks,
            self.capacity,
        )
    }
}

/// How fast some targets let in requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LetInRate {
    /// Milliseconds of prompts in each millisecond.
    per_ms: f64,
    /// Milliseconds that they have lent ahead.
    debt_ms: f64,
}

impl LetInRate {
    /// Returns the wait for room of a request at this place.
    pub(super) fn wait_of(self, shortage: &RoomShortage, place: RoomPlace) -> RoomWait {
        let before_ms = place.before_ms() + self.debt_ms;
        shortage.wait(place.ahead, expected_wait(before_ms, self.per_ms))
    }
}

impl RouterState {
    /// Moves a choice to the best target on which the request is warm or has room.
    ///
    /// # Errors
    ///
    /// There is none; returns the target that lacks least.
    pub(crate) fn keep_to_room(
        &mut self,
        now: Moment,
        settings: &RoutingSettings,
        choice: &mut Choice<'_>,
    ) -> Result<(), RoomShortage> {
        if choice.input.prompt_tokens <= COLD_TOKENS {
            return Ok(());
        }
        let mut known_blocks: Vec<Option<KnownBlocks>> = Vec::new();
        known_blocks.resize_with(choice.input.prompts.len(), || None);
        let (chosen, allowed) = (choice.position, allowed_positions(settings, choice));
        let others = allowed.clone().filter(|position| *position != chosen);
        let mut least: Option<RoomShortage> = None;
        for position in iter::once(chosen).chain(others) {
            let prompt = choice.candidate(position).overlap.prompt;
            let Some(footprint) = &choice.input.prompts[prompt].footprint else {
                // Admission was switched on after the request was surveyed.
                choice.move_to(position);
                return Ok(());
            };
            let live = &self.ledger.live;
            let known: &KnownBlocks =
                known_blocks[prompt].get_or_insert_with(|| live.known(footprint));
            let shortage = self.shortage(now, settings, choice, position, (footprint, known));
            let Some(shortage) = shortage else {
                choice.move_to(position);
                return Ok(());
            };
            let lacks_less = |least: &RoomShortage| shortage.missing_blocks < least.missing_blocks;
            if least.as_ref().is_none_or(lacks_less) {
                least = Some(shortage);
            }
        }
        least.map_or(Ok(()), Err)
    }

    /// Returns what a candidate lacks; `None`: the request is warm there, has room, or nothing is
    /// known of the cache.
    fn shortage(
        &mut self,
        now: Moment,
        settings: &RoutingSettings,
        choice: &Choice<'_>,
        position: usize,
        (footprint, known): (&Footprint, &KnownBlocks),
    ) -> Option<RoomShortage> {
        let contender = choice.candidate(position);
        let (surveyed, target) = (&contender.overlap, contender.target());
        let candidate = surveyed.candidate;
        // Blocks that it reads from another target take as much room as those that it computes.
        let read_tokens = contender.fetch.map_or(0, |fetch| fetch.tokens);
        let lacks_tokens = surveyed.uncached_tokens.saturating_add(read_tokens);
        if lacks_tokens <= COLD_TOKENS || candidate.cache != CacheSource::Events {
            return None;
        }
        let output = choice.input.expected_output_tokens;
        let test = self.room_test(now, candidate, (footprint, known), output)?;
        let missing_blocks = test.missing_blocks(self.ledger.live.share());
        (missing_blocks > 0.0).then(|| RoomShortage {
            target,
            live_blocks: test.live_blocks,
            capacity: test.capacity,
            needed_blocks: test.needed_blocks,
            missing_blocks,
            keep: self.ledger.live.keep_time(),
            prefill_ms: whole_prefill_ms(contender, choice.input.prompt_tokens),
            targets: allowed_positions(settings, choice).len(),
            is_bound_to_target: is_bound_to_target(settings, choice),
        })
    }

    /// Returns how many blocks that would be used again a target is expected to drop for those of a
    /// request that it lacks: of the live ones, as many as prompts return. 0 if nothing is known of its
    /// cache.
    pub(crate) fn displaced_blocks(
        &mut self,
        now: Moment,
        candidate: &Candidate,
        of: (&Footprint, &KnownBlocks),
        output_tokens: f64,
    ) -> f64 {
        let test = self.room_test(now, candidate, of, output_tokens);
        let dropped = test.map_or(0.0, |test| {
            let missing = test.missing_blocks(1.0);
            missing.clamp(0.0, test.needed_blocks as f64)
        });
        self.ledger.live.share() * dropped
    }

    /// Returns how a request fits into a cache; `None`: nothing is known of it.
    fn room_test(
        &mut self,
        now: Moment,
        candidate: &Candidate,
        (footprint, known): (&Footprint, &KnownBlocks),
        output_tokens: f64,
    ) -> Option<RoomTest> {
        let target = candidate.target;
        let live = &mut self.ledger.live;
        let reported = candidate.total_blocks.filter(|blocks| *blocks > 0);
        let capacity = reported
            .map(u64::from)
            .or_else(|| live.observed_capacity(target))?;
        let in_use = known.of(target) as u64 * footprint.span;
        let needed_blocks = footprint.blocks().saturating_sub(in_use);
        let live_blocks = live.blocks(now, target);
        let block_tokens = f64::from(candidate.namespace.block_size.tokens());
        Some(RoomTest {
            live_blocks,
            capacity,
            needed_blocks,
            reply_blocks: output_tokens / block_tokens,
        })
    }

    /// Adds the credit that these targets have earned; returns whether any of them has some, `first`:
    /// all the credit that it may have. To choose a target takes longer.
    pub(crate) fn has_credit(
        &mut self,
        now: Moment,
        settings: &RoutingSettings,
        targets: &[Target],
        first: bool,
    ) -> bool {
        let mut found = false;
        for target in targets {
            let of = self.lending_target(now, settings, *target, targets.len());
            self.lending.earn(of);
            found |= lends(self.lending.credit_ms(of), first);
        }
        found
    }

    /// Returns the position of the best target that can begin the request and has credit for it, as
    /// earned by the last [`Self::has_credit`]; `first`: all the credit that it may have.
    pub(crate) fn lending_position(
        &self,
        now: Moment,
        settings: &RoutingSettings,
        choice: &Choice<'_>,
        first: bool,
    ) -> Option<usize> {
        let longest = settings.queue.longest_backlog(self.ledger.replicas());
        let longest_ms = longest.as_secs_f64() * 1e3;
        let mut allowed = allowed_positions(settings, choice);
        let targets = allowed.len();
        allowed.find(|position| {
            let contender = choice.candidate(*position);
            let of = self.lending_target(now, settings, contender.target(), targets);
            contender.state.backlog_ms <= longest_ms && lends(self.lending.credit_ms(of), first)
        })
    }

    /// Returns the wait for room of a request that begins to wait, for one of `targets`.
    pub(crate) fn new_room_wait(
        &self,
        now: Moment,
        settings: &RoutingSettings,
        (job, shortage): (&Job<'_>, &RoomShortage),
        (targets, lent): (impl Iterator<Item = Target>, LentShare),
    ) -> RoomWait {
        let (tenant, priority) = (job.tenant(), job.overrides.priority);
        let place = self.queue.room_before(shortage.target, &tenant, priority);
        let asked = (shortage, shortage.prefill_ms);
        let rate = self.let_in_rate(now, settings, asked, (targets, lent));
        rate.wait_of(shortage, place)
    }

    /// Returns the rate at which some targets let in requests with this shortage; `more_ms`: of this
    /// prompt the queue does not know yet.
    pub(super) fn let_in_rate(
        &self,
        now: Moment,
        settings: &RoutingSettings,
        (shortage, more_ms): (&RoomShortage, f64),
        (targets, lent): (impl Iterator<Item = Target>, LentShare),
    ) -> LetInRate {
        let terms = self.lending_terms(settings, shortage.target, shortage.targets, more_ms);
        let share = match lent {
            LentShare::Wanted => terms.share(),
            LentShare::Most => terms.most_share(),
        };
        let waiting_since = self.queue.waiting_for_room_since(shortage.target);
        let may_go = |target: &Target| !shortage.is_bound_to_target || *target == shortage.target;
        let mut rate = LetInRate::default();
        for target in targets.filter(may_go) {
            let of = LendingTarget {
                now,
                target,
                waiting_since,
                share,
            };
            rate.per_ms += share.max(self.lending.let_in_rate(of));
            rate.debt_ms += (-self.lending.credit_ms(of)).max(0.0);
        }
        rate
    }

    /// Records that a request that waited for room, or lacked it, is let in on a target because there
    /// is room.
    pub(crate) fn record_room(
        &mut self,
        now: Moment,
        settings: &RoutingSettings,
        target: Target,
        shortage: &RoomShortage,
    ) {
        let of = self.lending_target(now, settings, target, shortage.targets);
        self.lending.earn(of);
        self.lending.record_room(target, shortage.prefill_ms);
    }

    /// Records that a request is let in on a target without room.
    pub(crate) fn lend(&mut self, target: Target, prefill_ms: f64) {
        self.lending.spend(target, prefill_ms);
        self.admission.budget += 1;
    }

    /// Returns a target with its share, as one of so many for which the requests wait.
    pub(super) fn lending_target(
        &self,
        now: Moment,
        settings: &RoutingSettings,
        target: Target,
        targets: usize,
    ) -> LendingTarget {
        LendingTarget {
            now,
            target,
            waiting_since: self.queue.waiting_for_room_since(target),
            share: self.lending_terms(settings, target, targets, 0.0).share(),
        }
    }

    fn lending_terms(
        &self,
        settings: &RoutingSettings,
        target: Target,
        targets: usize,
        more_ms: f64,
    ) -> LendingTerms {
        LendingTerms {
            need_ms: self.queue.room_need_ms(target) + more_ms,
            targets,
            target_wait: settings.section.admission_wait,
            routers: self.ledger.replicas(),
        }
    }
}

/// Returns whether a target with this credit lends; `first`: only if it is all that it may have.
fn lends(credit_ms: f64, first: bool) -> bool {
    if first {
        is_full(credit_ms)
    } else {
        credit_ms > 0.0
    }
}

/// Returns whether a request waits for the one target of its session, whatever room others have.
fn is_bound_to_target(settings: &RoutingSettings, choice: &Choice<'_>) -> bool {
    choice.by_session && settings.section.session.mode == SessionMode::Hard
}

/// Returns the positions of the targets to which a request may go.
fn allowed_positions(settings: &RoutingSettings, choice: &Choice<'_>) -> Range<usize> {
    if is_bound_to_target(settings, choice) {
        choice.position..choice.position + 1
    } else {
        0..choice.order.len()
    }
}

/// Returns the time to compute a whole prompt on a candidate.
pub(crate) fn whole_prefill_ms(contender: &PolicyCandidate<'_>, prompt_tokens: u32) -> f64 {
    contender
        .state
        .rates
        .prefill_ms(0.0, f64::from(prompt_tokens))
}
