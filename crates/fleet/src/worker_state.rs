//! Whether a worker gets requests, as the snapshot has it.

use time::OffsetDateTime;

use crate::WorkerProblem;

/// Whether a worker gets requests, and if not, why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkerState {
    /// Not checked yet.
    #[default]
    Unknown,
    /// Passes its checks: the only state that gets requests.
    Ready,
    /// Up and loading, as it reports itself (contract CH4).
    WarmingUp,
    /// Refuses connections or fails its checks.
    Down,
    /// Finishes running requests and gets no new ones.
    Draining,
    /// Passes its checks and fails its requests: excluded for a while.
    Ejected,
}

impl WorkerState {
    /// All states, in the order used in metrics.
    pub const ALL: [Self; 6] = [
        Self::Ready,
        Self::WarmingUp,
        Self::Down,
        Self::Unknown,
        Self::Draining,
        Self::Ejected,
    ];

    /// Returns the word used in replies, metrics and the verdict line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Ready => "ready",
            Self::WarmingUp => "warming_up",
            Self::Down => "down",
            Self::Draining => "draining",
            Self::Ejected => "ejected",
        }
    }
}

/// A worker's state and its last failures.
#[derive(Clone, Debug)]
pub struct HealthView {
    /// Whether it gets requests.
    pub state: WorkerState,
    /// When it entered this state.
    pub since: OffsetDateTime,
    /// How often its process ended, detected by refused connections; everything that it held ended
    /// with it.
    pub ended: u64,
    /// The last error; `None` after a success.
    pub last_error: Option<WorkerProblem>,
}

impl HealthView {
    /// Creates the health of a worker that has not been checked since this time.
    pub fn unknown(since: OffsetDateTime) -> Self {
        Self {
            state: WorkerState::Unknown,
            since,
            ended: 0,
            last_error: None,
        }
    }
}
