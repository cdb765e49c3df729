//! The rules of a target's transitions: which requests decide, and which state follows.

use kv_blocks::Moment;

use super::{StateStep, TargetTracker};
use crate::{Basis, ParitySettings, ParityState, comparison::Comparison};

/// Comparison over the requests that decide.
enum Evidence {
    /// Enough requests.
    Enough(Comparison),
    /// Too few so far; more will come.
    TooFew,
    /// The window itself holds too few.
    None(String),
}

impl TargetTracker {
    pub(super) fn evaluate(&mut self, now: Moment, settings: &ParitySettings) -> Option<StateStep> {
        if self.state.trusts_events() {
            self.evaluate_predictions(now, settings)
        } else {
            self.evaluate_announcements(now, settings)
        }
    }

    fn evaluate_predictions(
        &mut self,
        now: Moment,
        settings: &ParitySettings,
    ) -> Option<StateStep> {
        let comparison = match self.evidence(settings) {
            Evidence::Enough(comparison) => comparison,
            Evidence::TooFew => return None,
            Evidence::None(_) if self.state == ParityState::NoData => return None,
            Evidence::None(reason) => {
                return Some(self.enter(ParityState::NoData, now, None, reason));
            }
        };
        let ratio = comparison.ratio();
        let by_events = self.basis.is_some_and(|(basis, _)| basis == Basis::Events);
        let to = if ratio > settings.downgrade_ratio && by_events {
            ParityState::Downgraded
        } else if ratio > settings.drift_ratio {
            ParityState::Drifting
        } else if self.state == ParityState::Drifting && ratio > settings.recover_ratio {
            return None;
        } else {
            ParityState::Ok
        };
        if to == self.state {
            return None;
        }
        let reason = match to {
            ParityState::Downgraded => format!(
                "{comparison}, above parity.downgrade_ratio {}: its events are not believed",
                settings.downgrade_ratio
            ),
            ParityState::Drifting => format!(
                "{comparison}, above parity.drift_ratio {}",
                settings.drift_ratio
            ),
            _ => comparison.to_string(),
        };
        Some(self.enter(to, now, Some(ratio), reason))
    }

    fn evidence(&self, settings: &ParitySettings) -> Evidence {
        let least = settings.min_joined;
        let few = |requests: usize| {
            format!("{requests} requests could be compared, parity.min_joined is {least}")
        };
        // Where about a tenth of the replies report cached tokens, the source alternates: data of
        // either source keeps the state.
        let joined = self.window.joined();
        let counted = || {
            self.intervals
                .all_predictions()
                .map_or(0, |comparison| comparison.requests)
        };
        if self.window.has_enough_samples() {
            let comparison = self.window.predictions();
            return match comparison.requests {
                enough if enough >= least => Evidence::Enough(comparison),
                _ if joined >= least => Evidence::TooFew,
                _ if self.state != ParityState::NoData && counted() >= least => Evidence::TooFew,
                _ => Evidence::None(few(joined)),
            };
        }
        match self.intervals.spans(self.from).predictions() {
            Ok(Some(comparison)) if comparison.requests >= least => Evidence::Enough(comparison),
            _ if joined >= least => Evidence::TooFew,
            Err(refused) => Evidence::None(refused.to_string()),
            Ok(_) => match counted() {
                enough if enough >= least => Evidence::TooFew,
                counted => Evidence::None(few(counted)),
            },
        }
    }

    fn evaluate_announcements(
        &mut self,
        now: Moment,
        settings: &ParitySettings,
    ) -> Option<StateStep> {
        let latest = |count: usize| {
            if self.window.has_enough_samples() {
                self.window.latest_announcements(count)
            } else {
                self.intervals.spans(self.from).latest_announcements(count)
            }
        };
        let first = latest(settings.first_sign())?;
        let whole =
            latest(settings.min_joined).filter(|whole| whole.ratio() <= settings.recover_ratio);
        let (to, seen) = match (self.state, first.ratio(), whole) {
            (ParityState::Downgraded, ratio, _) if ratio <= settings.recover_ratio => {
                (ParityState::Recovering, first)
            }
            (ParityState::Recovering, ratio, _) if ratio > settings.drift_ratio => {
                (ParityState::Downgraded, first)
            }
            (ParityState::Recovering, _, Some(whole)) => (ParityState::Ok, whole),
            _ => return None,
        };
        let reason = match to {
            ParityState::Recovering => format!(
                "by its events {seen}: they are believed again when the latest {} requests are within \
                 parity.recover_ratio {}",
                settings.min_joined, settings.recover_ratio
            ),
            ParityState::Downgraded => format!(
                "by its events {seen}, above parity.drift_ratio {}: they are not believed",
                settings.drift_ratio
            ),
            _ => format!("by its events {seen}: they are believed again"),
        };
        Some(self.enter(to, now, Some(seen.ratio()), reason))
    }

    pub(super) fn enter(
        &mut self,
        to: ParityState,
        now: Moment,
        ratio: Option<f64>,
        reason: String,
    ) -> StateStep {
        let from = std::mem::replace(&mut self.state, to);
        self.since = now;
        self.reason = (to != ParityState::Ok).then(|| reason.clone());
        // Both of these states use the comparisons since the downgrade.
        if (from, to) != (ParityState::Downgraded, ParityState::Recovering) {
            self.start_over(now);
        }
        StateStep {
            from,
            to,
            ratio,
            reason,
        }
    }

    /// Returns why the target is in its state: the observation at the change, or with too little
    /// data the current amount.
    pub(super) fn reason(&self, settings: &ParitySettings) -> Option<String> {
        match self.state {
            ParityState::NoData if self.window.requests() > 0 => match self.evidence(settings) {
                Evidence::None(reason) => Some(reason),
                Evidence::Enough(_) | Evidence::TooFew => self.reason.clone(),
            },
            _ => self.reason.clone(),
        }
    }
}
