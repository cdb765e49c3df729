//! How far a target's predictions can be relied on.

use kv_blocks::Target;

/// How a target's predictions fare.
///
/// - `no_data` -> `ok`, `drifting` or `downgraded`: by the window's ratio, once `min_joined` requests could be compared.
///   Back to `no_data` (from `ok` and `drifting`) when the window holds fewer.
/// - `ok` -> `drifting`: above `drift_ratio`. `drifting` -> `ok`: at or below `recover_ratio`.
/// - -> `downgraded`: above `downgrade_ratio`, for a target that is known by its events. They are not believed from then
///   on; what they would have said goes on being compared.
/// - `downgraded` -> `recovering`: the latest 10 (or `min_joined`) of these comparisons are within `recover_ratio`.
/// - `recovering` -> `ok`: the latest `min_joined` are; the events are believed again. `recovering` -> `downgraded`: the
///   latest 10 are above `drift_ratio`.
/// - A target that has lost its stream for good is one without events: `no_data`.
///
/// After each change earlier requests decide nothing more, except from `downgraded` to `recovering`: both look at the
/// same comparisons, those since the downgrade. Nor do those before a restart of the engine, or before predictions began
/// to go by something else ([`crate::Basis`]); the state stays until enough of the others are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ParityState {
    /// Too little to tell.
    #[default]
    NoData,
    /// Predictions are right.
    Ok,
    /// Its events are not believed yet, and have been right lately.
    Recovering,
    /// Predictions are off.
    Drifting,
    /// Its events are not believed: its cache is predicted from our own decisions.
    Downgraded,
}

impl ParityState {
    /// The word used in replies and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoData => "no_data",
            Self::Ok => "ok",
            Self::Recovering => "recovering",
            Self::Drifting => "drifting",
            Self::Downgraded => "downgraded",
        }
    }

    /// The state that needs the operator's eye more.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        self.max(other)
    }

    /// Whether the target's events are believed.
    pub fn trusts_events(self) -> bool {
        !matches!(self, Self::Recovering | Self::Downgraded)
    }
}

/// A target's state changed.
#[derive(Clone, Debug, PartialEq)]
pub struct ParityChange {
    /// Whose.
    pub target: Target,
    /// What it was.
    pub from: ParityState,
    /// What it is.
    pub to: ParityState,
    /// The ratio that decided; `None` where there was nothing to compare.
    pub ratio: Option<f64>,
    /// What was seen, one sentence with its numbers.
    pub reason: String,
}

impl ParityChange {
    /// What the caller has to do about the target's events: believe them again (`true`), or not any more (`false`: what
    /// they said is to be fetched anew, also when that was asked for before); `None`: nothing.
    pub fn trust(&self) -> Option<bool> {
        match (self.from.trusts_events(), self.to) {
            (_, ParityState::Downgraded) | (true, ParityState::Recovering) => Some(false),
            (false, to) if to.trusts_events() => Some(true),
            _ => None,
        }
    }

    /// This change and the one before it, which nobody has acted on yet, as one.
    #[must_use]
    pub fn after(self, earlier: &Self) -> Self {
        Self {
            from: earlier.from,
            ..self
        }
    }
}
