//! How reliable a target's predictions are.

use kv_blocks::{Moment, Target};

/// The state of a target's predictions.
///
/// - `no_data` -> `ok`, `drifting` or `downgraded`: by the window's ratio, once `min_joined`
///   requests could be compared. Back to `no_data` (from `ok` and `drifting`) when the window holds
///   fewer.
/// - `ok` -> `drifting`: above `drift_ratio`. `drifting` -> `ok`: at or below `recover_ratio`.
/// - -> `downgraded`: above `downgrade_ratio`, for a target whose predictions are based on its
///   events. The events are not trusted from then on; predictions from them are still compared.
/// - `downgraded` -> `recovering`: the latest 10 (or `min_joined`) of these comparisons are within
///   `recover_ratio`.
/// - `recovering` -> `ok`: the latest `min_joined` are; the events are trusted again. `recovering`
///   -> `downgraded`: the latest 10 are above `drift_ratio`.
/// - A target that has lost its stream for good counts as one without events: `no_data`.
///
/// After each change earlier requests decide nothing more, except from `downgraded` to
/// `recovering`: both use the comparisons since the downgrade. Requests before a restart of the
/// engine, or before a change of the basis of predictions ([`crate::Basis`]), decide nothing
/// either; the state stays until enough newer ones are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ParityState {
    /// Too few comparisons.
    #[default]
    NoData,
    /// Predictions are right.
    Ok,
    /// The events are not trusted yet, and have been right lately.
    Recovering,
    /// Predictions are off.
    Drifting,
    /// The events are not trusted: the cache is predicted from our own decisions.
    Downgraded,
}

impl ParityState {
    /// Returns the name used in replies and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoData => "no_data",
            Self::Ok => "ok",
            Self::Recovering => "recovering",
            Self::Drifting => "drifting",
            Self::Downgraded => "downgraded",
        }
    }

    /// Returns the worse of two states, the one that needs the operator's attention more.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        self.max(other)
    }

    /// Returns whether the target's events are trusted.
    pub fn trusts_events(self) -> bool {
        !matches!(self, Self::Recovering | Self::Downgraded)
    }
}

/// A state, and how it came about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParityVerdict {
    /// The state of the predictions.
    pub state: ParityState,
    /// When the target entered the state.
    pub since: Moment,
    /// Why, if there is a reason.
    pub reason: Option<String>,
}

impl ParityVerdict {
    /// Merges the verdict on another target: the worse one; of equal states the older one.
    pub(crate) fn absorb(&mut self, other: Self) {
        let worse = self.state.worse(other.state) != self.state;
        if worse || (self.state == other.state && other.since < self.since) {
            *self = other;
        }
    }
}

/// A change of a target's state.
#[derive(Clone, Debug, PartialEq)]
pub struct ParityChange {
    /// The target.
    pub target: Target,
    /// The state before.
    pub from: ParityState,
    /// The state from now on.
    pub to: ParityState,
    /// The ratio that decided; `None` where there was nothing to compare.
    pub ratio: Option<f64>,
    /// The observation that decided, one sentence with its numbers.
    pub reason: String,
}

impl ParityChange {
    /// Returns the new trust in the target's events: `true` to trust them again, `false` to stop
    /// trusting them (the caller fetches the target's state again, even if an earlier change
    /// required that already), `None` for no change.
    pub fn trust(&self) -> Option<bool> {
        match (self.from.trusts_events(), self.to) {
            (_, ParityState::Downgraded) | (true, ParityState::Recovering) => Some(false),
            (false, to) if to.trusts_events() => Some(true),
            _ => None,
        }
    }

    /// Merges this change with the one before it that the caller has not acted on yet.
    #[must_use]
    pub fn after(self, earlier: &Self) -> Self {
        Self {
            from: earlier.from,
            ..self
        }
    }
}
