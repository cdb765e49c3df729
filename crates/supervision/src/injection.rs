//! Injects panics in tests.
//!
//! `WARMROUTE_TEST_PANICS` is a list of rules, separated by commas:
//!
//! - `TASK:every=1s`: the task of this name (the label `task` of `warmroute_task_panics_total`), or
//!   the [`panic_point`] of this name, panics once a second;
//! - `every=10s`: every ten seconds one supervised task or point panics, each in turn. One that is
//!   not running, or whose point is not passed, loses its turn after a second.
//! - `tasks:every=10s`: as before, without the points, so that no request is affected.
//!
//! Times are whole numbers followed by `ms` or `s`. An invalid rule is an immediate panic: a test
//! that injects nothing would prove nothing.
//!
//! The variable is read only in builds with debug assertions: a production build contains none of
//! this.

use std::convert::Infallible;

/// Injects a panic into code that is not a task of its own. The gateway has the points `request`
/// (while the reply's head is made) and `reply_body` (while a body is polled). Does nothing in a
/// release build, or while `WARMROUTE_TEST_PANICS` is not set.
///
/// # Panics
///
/// Panics when a rule requires it.
#[inline]
pub fn panic_point(name: &'static str) {
    #[cfg(debug_assertions)]
    rules::strike(name, rules::PanicSite::Point);
    #[cfg(not(debug_assertions))]
    let _ = name;
}

/// Panics when a rule requires it; never returns.
pub(crate) async fn strikes(name: &'static str) -> Infallible {
    #[cfg(debug_assertions)]
    rules::strikes(name).await;
    let _ = name;
    std::future::pending().await
}

#[cfg(debug_assertions)]
mod rules {
    use std::{sync::LazyLock, time::Duration};

    use parking_lot::Mutex;
    use tokio::time::{Instant, sleep};

    const VARIABLE: &str = "WARMROUTE_TEST_PANICS";
    /// How often a task checks whether its turn has come.
    const LOOK_EVERY: Duration = Duration::from_millis(20);
    /// How long a turn waits for a task or point that does not run.
    const PATIENCE: Duration = Duration::from_secs(1);

    static RULES: LazyLock<Vec<Mutex<InjectionRule>>> = LazyLock::new(|| {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        let rules = text.split(',').filter(|rule| !rule.is_empty());
        rules
            .map(|rule| Mutex::new(InjectionRule::read(rule, Instant::now())))
            .collect()
    });

    pub(super) fn strike(name: &'static str, of: PanicSite) {
        let mut due = false;
        // Every rule is checked, so that each one learns all the names that can have a turn.
        for rule in RULES.iter() {
            due |= rule.lock().is_due(name, of, Instant::now());
        }
        assert!(!due, "injected by {VARIABLE}");
    }

    pub(super) async fn strikes(name: &'static str) {
        while !RULES.is_empty() {
            sleep(LOOK_EVERY).await;
            strike(name, PanicSite::Task);
        }
    }

    /// The kind of place that checks for an injected panic.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum PanicSite {
        Task,
        Point,
    }

    /// The places to which a rule applies.
    #[derive(Debug, PartialEq, Eq)]
    enum RuleScope {
        All,
        Tasks,
        One(String),
    }

    impl RuleScope {
        fn includes(&self, name: &str, of: PanicSite) -> bool {
            match self {
                Self::All => true,
                Self::Tasks => of == PanicSite::Task,
                Self::One(only) => only == name,
            }
        }
    }

    /// One rule: which places panic, and how often.
    #[derive(Debug)]
    pub(super) struct InjectionRule {
        scope: RuleScope,
        every: Duration,
        due: Instant,
        /// The names seen so far. They are written in the source, so there are few.
        names: Vec<&'static str>,
        turn: usize,
    }

    impl InjectionRule {
        pub(super) fn read(rule: &str, now: Instant) -> Self {
            let form = || -> ! {
                panic!("{VARIABLE}: {rule:?} is no rule: expected TASK:every=1s or every=10s")
            };
            let (scope, every) = match rule.split_once(':') {
                Some(("tasks", every)) => (RuleScope::Tasks, every),
                Some((task, every)) => (RuleScope::One(task.to_owned()), every),
                None => (RuleScope::All, rule),
            };
            let Some(every) = every.strip_prefix("every=") else {
                form()
            };
            let (number, unit) = every.split_at(every.trim_end_matches(char::is_alphabetic).len());
            let every = match (number.parse(), unit) {
                (Ok(number), "s") => Duration::from_secs(number),
                (Ok(number), "ms") => Duration::from_millis(number),
                _ => form(),
            };
            Self {
                scope,
                every,
                due: now + every,
                names: Vec::new(),
                turn: 0,
            }
        }

        /// Returns whether `name` has to panic now.
        pub(super) fn is_due(&mut self, name: &'static str, of: PanicSite, now: Instant) -> bool {
            if !self.scope.includes(name, of) {
                return false;
            }
            if !self.names.contains(&name) {
                self.names.push(name);
            }
            if now < self.due {
                return false;
            }
            if now - self.due >= PATIENCE {
                self.turn += 1;
                self.due = now;
            }
            let due = self.names[self.turn % self.names.len()] == name;
            if due {
                self.turn += 1;
                self.due = now + self.every;
            }
            due
        }
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::rules::{InjectionRule, PanicSite};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_rule_for_one_task_strikes_that_task_alone_at_its_pace() {
        let start = Instant::now();
        let mut rule = InjectionRule::read("accept:every=50ms", start);
        let injected: Vec<u64> = (0..200)
            .filter(|at| rule.is_due("accept", PanicSite::Task, start + ms(*at)))
            .collect();
        assert_eq!(injected, [50, 100, 150]);
        assert!(!rule.is_due("housekeeping", PanicSite::Task, start + ms(1000)));
    }

    #[test]
    fn a_rule_for_all_strikes_one_after_the_other_and_passes_over_those_that_are_gone() {
        let start = Instant::now();
        let mut rule = InjectionRule::read("every=10s", start);
        let mut injected = Vec::new();
        for at in (0..70_000).step_by(20) {
            for name in ["a", "b", "c"] {
                // The second ends after a while.
                if !(name == "b" && at > 35_000)
                    && rule.is_due(name, PanicSite::Task, start + ms(at))
                {
                    injected.push((at / 1000, name));
                }
            }
        }
        assert_eq!(
            injected,
            [
                (10, "a"),
                (20, "b"),
                (30, "c"),
                (40, "a"),
                (51, "c"),
                (61, "a")
            ]
        );
    }

    #[test]
    fn a_rule_for_tasks_strikes_no_request() {
        let start = Instant::now();
        let mut rule = InjectionRule::read("tasks:every=1s", start);
        assert!(!rule.is_due("request", PanicSite::Point, start + ms(1500)));
        assert!(rule.is_due("accept", PanicSite::Task, start + ms(1500)));
    }

    #[test]
    #[should_panic(expected = "is no rule")]
    fn what_is_no_rule_is_refused() {
        InjectionRule::read("accept:often", Instant::now());
    }
}
