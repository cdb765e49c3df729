//! The parity monitor: every ended request feeds it, and it withdraws trust where predictions were
//! wrong.
//!
//! `parity` has the rules. This module connects its tracker to the fleet: engine counters go in,
//! and trust in a target's events comes out. A request only queues the change: applying it can take
//! long, and one task does that.

use std::{collections::HashMap, sync::Arc};

use dialect::{Dialect, RequestView, Usage};
use fleet::Fleet;
use kv_blocks::{Moment, Target};
use net::Clock;
use parity::{
    EngineCounters, IncomparableRequest, ParityChange, ParityState, ParityTracker,
    PredictionSample, ReplyKind,
};
use parking_lot::Mutex;
use tokenization::TokenizedPrompt;
use tokio::sync::Notify;

use crate::request::receipt::Selection;

/// The parity tracker and the fleet.
#[derive(Debug)]
pub(crate) struct ParityMonitor {
    tracker: Arc<Mutex<ParityTracker>>,
    fleet: Arc<Fleet>,
    clock: Clock,
    /// Changes to apply. At most one per target: a later one absorbs the earlier.
    changes: Mutex<HashMap<Target, ParityChange>>,
    changed: Notify,
}

impl ParityMonitor {
    pub(crate) fn new(tracker: Arc<Mutex<ParityTracker>>, fleet: Arc<Fleet>, clock: Clock) -> Self {
        Self {
            tracker,
            fleet,
            clock,
            changes: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Records a successful request to `target`; returns its cached tokens, where they are known.
    pub(crate) fn observe(&self, target: Target, sample: PredictionSample) -> Option<u32> {
        let mut tracker = self.tracker.lock();
        let observed = tracker.observe(self.clock.now(), target, sample);
        self.queue_change(observed.change);
        observed.actual
    }

    /// Records an incomparable request to `target`.
    pub(crate) fn record_incomparable(&self, target: Target, request: IncomparableRequest) {
        self.tracker
            .lock()
            .record_incomparable(self.clock.now(), target, request);
    }

    /// Advances the time.
    pub(crate) fn tick(&self, now: Moment) {
        let counters = self.fleet.prefix_cache_counters();
        let restarts = self.fleet.stream_restarts();
        for target in self
            .fleet
            .snapshot()
            .workers
            .iter()
            .flat_map(|worker| worker.targets())
        {
            let reported = counters.get(&target).map(|reported| EngineCounters {
                at: reported.at,
                queries: reported.queries,
                hits: reported.hits,
            });
            let mut tracker = self.tracker.lock();
            let change = tracker.tick(now, target, reported, restarts.get(&target).copied());
            self.queue_change(change);
        }
    }

    /// Queues a change. Called with the tracker locked: changes of one target stay in their order.
    fn queue_change(&self, change: Option<ParityChange>) {
        let Some(change) = change else { return };
        let mut changes = self.changes.lock();
        let change = match changes.remove(&change.target) {
            Some(earlier) => change.after(&earlier),
            None => change,
        };
        changes.insert(change.target, change);
        self.changed.notify_one();
    }

    /// Waits until [`Self::apply_changes`] has work.
    pub(crate) async fn wait_for_change(&self) {
        self.changed.notified().await;
    }

    /// Applies the queued changes. For one caller at a time: of two changes of one target the later
    /// must come last.
    pub(crate) fn apply_changes(&self) {
        // One at a time: a panic costs one change, and not the queued ones.
        while let Some(change) = self.next_change() {
            if let Some(trusted) = change.trust() {
                self.fleet.trust(change.target, trusted);
            }
            self.log_change(&change);
        }
    }

    fn next_change(&self) -> Option<ParityChange> {
        let mut changes = self.changes.lock();
        let target = *changes.keys().next()?;
        changes.remove(&target)
    }

    fn log_change(&self, change: &ParityChange) {
        let ParityChange {
            target,
            from,
            to,
            ratio,
            reason,
        } = change;
        let snapshot = self.fleet.snapshot();
        let worker = snapshot
            .worker(target.worker)
            .map_or("unknown", |worker| &*worker.name);
        let (rank, from, ratio, state) = (target.rank.0, from.as_str(), *ratio, to.as_str());
        match (change.from, to) {
            (_, ParityState::Drifting | ParityState::Downgraded) => {
                tracing::warn!(
                    worker,
                    rank,
                    from,
                    state,
                    ratio,
                    reason,
                    "predictions do not hold"
                );
            }
            // Comes and goes with the traffic.
            (ParityState::NoData | ParityState::Ok, _) => {
                tracing::debug!(
                    worker,
                    rank,
                    from,
                    state,
                    ratio,
                    reason,
                    "predictions are judged anew"
                );
            }
            _ => tracing::info!(
                worker,
                rank,
                from,
                state,
                ratio,
                reason,
                "predictions are judged anew"
            ),
        }
    }
}

/// The prefix cache lookup that an engine is expected to make for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefixExpectation {
    /// Tokens, about.
    tokens: u64,
    /// Whether the engine's report is comparable with the prediction: the engine looks up exactly
    /// the router's tokens, once. For several choices it looks up several times, and its usage may
    /// be the sum.
    comparable: bool,
    reply: ReplyKind,
}

impl PrefixExpectation {
    pub(crate) fn of(dialect: Dialect, view: &RequestView<'_>, prompt: &TokenizedPrompt) -> Self {
        let choices = view.counts.n.unwrap_or(1);
        Self {
            tokens: u64::from(prompt.tokens).saturating_mul(choices.into()),
            comparable: prompt.source.is_exact()
                && choices == 1
                && view.counts.further_bytes == 0
                && !view.kv.skips_prefix_cache,
            reply: match (dialect, view.stream) {
                (Dialect::Chat, false) => ReplyKind::Chat,
                (Dialect::Chat, true) => ReplyKind::ChatStream,
                (Dialect::Completions, false) => ReplyKind::Completion,
                (Dialect::Completions, true) => ReplyKind::CompletionStream,
                (Dialect::TokenIds | Dialect::SglangGenerate, false) => ReplyKind::Native,
                (Dialect::TokenIds | Dialect::SglangGenerate, true) => ReplyKind::NativeStream,
                // Their prompts are never exact, so they are never compared.
                (_, false) => ReplyKind::Chat,
                (_, true) => ReplyKind::ChatStream,
            },
        }
    }

    /// Returns the prediction and the result of a successful request; `None` if they are
    /// incomparable.
    pub(crate) fn sample(
        self,
        selection: &Selection,
        usage: Option<Usage>,
    ) -> Option<PredictionSample> {
        let counted = usage
            .map(|usage| usage.prompt_tokens)
            .filter(|tokens| *tokens > 0);
        // The engine counts blocks that it read from another one as cached. Whether they came is no
        // matter of its own cache; the router learns it by itself.
        let is_own = self.comparable && !selection.fetches;
        is_own.then(|| PredictionSample {
            sent: selection.sent,
            prompt_tokens: counted
                .unwrap_or_else(|| u32::try_from(self.tokens).unwrap_or(u32::MAX)),
            predicted: selection.predicted_cached_tokens,
            announced: selection.announced_cached_tokens,
            actual: usage.and_then(|usage| usage.cached_tokens),
            counted_by: counted.map(|_| self.reply),
            basis: selection.basis,
        })
    }

    /// Marks a lookup as counted by an engine that may count otherwise than the router.
    pub(crate) fn with_foreign_count(self) -> Self {
        Self {
            comparable: false,
            ..self
        }
    }

    /// Returns the lookup of the prefill leg, whose reply is not streamed.
    pub(crate) fn of_prefill(self) -> Self {
        let reply = match self.reply {
            ReplyKind::Chat | ReplyKind::ChatStream => ReplyKind::Chat,
            ReplyKind::Completion | ReplyKind::CompletionStream => ReplyKind::Completion,
            ReplyKind::Native | ReplyKind::NativeStream => ReplyKind::Native,
        };
        Self { reply, ..self }
    }

    /// Returns the request as incomparable.
    pub(crate) fn incomparable(self, sent: Moment, until: Moment) -> IncomparableRequest {
        IncomparableRequest {
            sent,
            until,
            prompt_tokens: self.tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use routing::receipt::PromptSource;

    use super::*;
    use crate::request::receipt;

    fn prompt(source: PromptSource) -> TokenizedPrompt {
        TokenizedPrompt {
            source,
            ..TokenizedPrompt::without_blocks(100)
        }
    }

    fn expected(dialect: Dialect, body: &str, source: PromptSource) -> PrefixExpectation {
        let view = dialect::view(dialect, body.as_bytes()).expect("a good body");
        PrefixExpectation::of(dialect, &view, &prompt(source))
    }

    fn selection() -> Selection {
        receipt::tests::selection("w1", 64)
    }

    const ONE: &str = r#"{"model":"m","messages":[]}"#;

    #[test]
    fn only_one_choice_of_an_exactly_known_prompt_can_be_compared() {
        for (body, source, comparable) in [
            (ONE, PromptSource::Tokens, true),
            (ONE, PromptSource::EngineTokenize, true),
            (ONE, PromptSource::EngineRender, true),
            (ONE, PromptSource::TextPrefix, false),
            (ONE, PromptSource::None, false),
            (
                r#"{"model":"m","messages":[],"n":1}"#,
                PromptSource::Tokens,
                true,
            ),
            (
                r#"{"model":"m","messages":[],"n":2}"#,
                PromptSource::Tokens,
                false,
            ),
        ] {
            let sample = expected(Dialect::Chat, body, source).sample(&selection(), None);
            assert_eq!(sample.is_some(), comparable, "{body} {source:?}");
        }
        let foreign = expected(Dialect::Chat, ONE, PromptSource::Tokens).with_foreign_count();
        assert!(foreign.sample(&selection(), None).is_none());
    }

    #[test]
    fn the_engines_own_count_is_used_where_it_has_one() {
        let usage = |prompt_tokens| Usage {
            prompt_tokens,
            completion_tokens: 1,
            cached_tokens: Some(32),
        };
        let expectation = expected(Dialect::Chat, ONE, PromptSource::Tokens);
        for (usage, tokens, actual) in [
            (None, 100, None),
            (Some(usage(0)), 100, Some(32)),
            (Some(usage(99)), 99, Some(32)),
        ] {
            let sample = expectation.sample(&selection(), usage).expect("comparable");
            assert_eq!((sample.prompt_tokens, sample.actual), (tokens, actual));
            assert_eq!((sample.predicted, sample.announced), (64, 48));
            assert_eq!(sample.counted_by.is_some(), tokens == 99);
        }
    }

    #[test]
    fn several_choices_look_the_prompt_up_several_times() {
        let body = r#"{"model":"m","messages":[],"n":3}"#;
        let expectation = expected(Dialect::Chat, body, PromptSource::Tokens);
        let request = expectation.incomparable(Moment::START, Moment::START);
        assert_eq!(request.prompt_tokens, 300);
    }

    #[test]
    fn the_reply_of_a_prefill_is_never_a_stream() {
        for (dialect, fields, whole) in [
            (
                Dialect::Chat,
                r#""messages":[],"stream":true"#,
                ReplyKind::Chat,
            ),
            (Dialect::Chat, r#""messages":[]"#, ReplyKind::Chat),
            (Dialect::TokenIds, r#""token_ids":[1]"#, ReplyKind::Native),
            (
                Dialect::SglangGenerate,
                r#""text":"a","stream":true"#,
                ReplyKind::Native,
            ),
            (
                Dialect::Completions,
                r#""prompt":"a","stream":true"#,
                ReplyKind::Completion,
            ),
        ] {
            let body = format!(r#"{{"model":"m",{fields}}}"#);
            let expectation = expected(dialect, &body, PromptSource::Tokens);
            assert_eq!(expectation.of_prefill().reply, whole, "{body}");
            assert_eq!(
                expectation.reply == whole,
                !body.contains("stream"),
                "{body}"
            );
        }
    }
}
