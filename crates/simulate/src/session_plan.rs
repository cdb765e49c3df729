//! The closed loop: a number of sessions, each of which waits for its replies.

use std::time::Duration;

use engine_model::Profile;

use crate::{Trace, ranges::MOST_SESSIONS};

/// Sessions of a trace that run at the same time. When one ends, the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionPlan {
    /// Number of sessions at a time.
    pub concurrent: u32,
    /// Time that only warms the caches.
    pub warm_up: Duration,
    /// Time that is measured after it.
    pub measured: Duration,
    /// If above 0, pauses of a minute and more are drawn anew: a minute and an exponentially
    /// distributed time with this mean. Recorded sessions may have long pauses cut to a minute.
    pub mean_tail: Duration,
    /// A goal for first tokens ([`SessionPlan::SHARE_WITHIN`]): [`run_all`](crate::run_all) finds
    /// the largest number of sessions, up to `concurrent`, that meets it.
    pub ttft_goal: Option<Duration>,
}

impl SessionPlan {
    /// Share of the first tokens that have to come within the goal.
    pub const SHARE_WITHIN: f64 = 0.95;

    /// Creates a plan with an hour of measurement after a quarter of an hour of warm-up.
    pub fn new(concurrent: u32) -> Self {
        Self {
            concurrent,
            warm_up: Duration::from_secs(900),
            measured: Duration::from_secs(3_600),
            mean_tail: Duration::ZERO,
            ttft_goal: None,
        }
    }
}

/// Returns the number of sessions that need so many times the tokens that the caches of `workers`
/// engines hold; at least 1.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a number of sessions is in the range of its type"
)]
pub fn sessions_for(trace: &Trace, profile: &Profile, workers: u32, ratio: f64) -> u32 {
    let held = f64::from(profile.kv_tokens) * f64::from(workers);
    let sessions = (ratio * held / mean_footprint(trace)).round();
    sessions.clamp(1.0, f64::from(MOST_SESSIONS)) as u32
}

/// Returns the mean tokens of a prompt with its reply; 1 for a trace without requests.
pub(crate) fn mean_footprint(trace: &Trace) -> f64 {
    let tokens: f64 = trace
        .requests
        .iter()
        .map(|request| f64::from(request.prompt_tokens) + f64::from(request.output_tokens))
        .sum();
    (tokens / trace.requests.len().max(1) as f64).max(1.0)
}
