//! Thousands of random schedules: uniform, or with few preemptions, each at a random place.
//!
//! Another thread may continue at every atomic and at the lock. All orderings are sequentially
//! consistent here: the models in `exhaustive` test those. `KV_INDEX_SCHEDULES` sets the number of
//! schedules.

use shuttle::{
    Config, Runner,
    rand::{Rng, thread_rng},
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
};

use super::scenario;

fn check(scheduler: impl Scheduler + 'static) {
    let mut config = Config::new();
    config.stack_size = 1 << 18;
    Runner::new(scheduler, config).run(|| scenario::run(thread_rng().r#gen()));
}

fn schedules() -> usize {
    std::env::var("KV_INDEX_SCHEDULES")
        .ok()
        .and_then(|number| number.parse().ok())
        .unwrap_or(2_000)
}

#[test]
fn answers_are_right_in_uniformly_random_schedules() {
    check(RandomScheduler::new(schedules()));
}

#[test]
fn answers_are_right_in_schedules_with_few_preemptions() {
    check(PctScheduler::new(3, schedules()));
}
