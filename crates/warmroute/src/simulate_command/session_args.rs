//! Flags of the closed loop, and the ranges of their values.

use std::time::Duration;

use clap::Args;
use simulate::{
    PlannedPace, SessionNumbers, SessionPlan,
    ranges::{LONGEST_LOOP_S, LONGEST_TTFT_MS, MOST_CAPACITY, MOST_SESSIONS},
};

use super::args::number;

/// The sessions of a closed loop. Without one of the first three flags requests come as they were
/// recorded.
#[derive(Args, Debug)]
pub(super) struct SessionArgs {
    /// Play so many sessions at a time, separated by commas: a session's next request comes a while after its last reply,
    /// and when a session ends the next one begins. The trace has to name them.
    #[arg(long, value_name = "N", value_delimiter = ',', group = "closed_loop", conflicts_with_all = ["load", "speedup"],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_SESSIONS)))]
    sessions: Vec<u32>,
    /// The same with as many sessions as need so many times the tokens that all caches hold, separated by commas.
    #[arg(long, value_name = "TIMES", value_delimiter = ',', group = "closed_loop", conflicts_with_all = ["load", "speedup"],
          value_parser = capacity_ratio)]
    capacity_ratio: Vec<f64>,
    /// The same with the most sessions at which 95 % of the first tokens come within this time, which are searched for.
    #[arg(long, value_name = "ttft_ms=MS", group = "closed_loop", conflicts_with_all = ["load", "speedup"],
          value_parser = ttft_goal)]
    find_sessions: Option<Duration>,
    /// Time of a closed loop that only warms the caches [default: 900].
    #[arg(long, value_name = "SECONDS", requires = "closed_loop",
          value_parser = clap::value_parser!(u64).range(0..=LONGEST_LOOP_S))]
    warm_up_s: Option<u64>,
    /// Time of a closed loop that is measured after it [default: 3600].
    #[arg(long, value_name = "SECONDS", requires = "closed_loop",
          value_parser = clap::value_parser!(u64).range(1..=LONGEST_LOOP_S))]
    measured_s: Option<u64>,
    /// Make pauses of a minute and more a minute and a drawn time with this mean, for traces that cut them there.
    #[arg(long, value_name = "SECONDS", requires = "closed_loop",
          value_parser = clap::value_parser!(u64).range(1..=LONGEST_LOOP_S))]
    tail_s: Option<u64>,
}

impl SessionArgs {
    /// Returns whether the sessions of the trace are played in a closed loop.
    pub(super) fn is_closed_loop(&self) -> bool {
        self.numbers().is_some()
    }

    /// Returns the closed loops, if the flags ask for any.
    pub(super) fn planned(&self) -> Option<PlannedPace> {
        let seconds =
            |given: Option<u64>, usual: Duration| given.map_or(usual, Duration::from_secs);
        let usual = SessionPlan::new(1);
        let plan = SessionPlan {
            warm_up: seconds(self.warm_up_s, usual.warm_up),
            measured: seconds(self.measured_s, usual.measured),
            mean_tail: seconds(self.tail_s, usual.mean_tail),
            ..usual
        };
        Some(PlannedPace::Sessions(self.numbers()?, plan))
    }

    fn numbers(&self) -> Option<SessionNumbers> {
        if let Some(ttft) = self.find_sessions {
            Some(SessionNumbers::MostWithin(ttft))
        } else if !self.sessions.is_empty() {
            Some(SessionNumbers::Each(self.sessions.clone()))
        } else if !self.capacity_ratio.is_empty() {
            Some(SessionNumbers::CapacityRatios(self.capacity_ratio.clone()))
        } else {
            None
        }
    }
}

fn capacity_ratio(text: &str) -> Result<f64, String> {
    number(
        text,
        |times| times > 0.0 && times <= MOST_CAPACITY,
        "expected a number above 0, at most 100; at 1 the sessions just fit",
    )
}

fn ttft_goal(text: &str) -> Result<Duration, String> {
    text.strip_prefix("ttft_ms=")
        .and_then(|ms| ms.parse().ok())
        .filter(|ms| (1..=LONGEST_TTFT_MS).contains(ms))
        .map(Duration::from_millis)
        .ok_or_else(|| {
            let range = format!("1 to {LONGEST_TTFT_MS}");
            format!("expected ttft_ms= and milliseconds, {range}, such as ttft_ms=2000")
        })
}
