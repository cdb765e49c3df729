//! Simulated time on one thread.

use std::{
    cell::Cell,
    marker::PhantomData,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The wall-clock time at which a simulation begins: 2026-01-01, 00:00 UTC, in Unix seconds.
const EPOCH_S: u64 = 1_767_225_600;
/// Step of the random numbers' state (SplitMix64).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Clone, Copy)]
struct WorldState {
    start: Instant,
    random: u64,
}

thread_local! {
    static STATE: Cell<Option<WorldState>> = const { Cell::new(None) };
}

/// Puts the outside world of the calling thread under simulation until it is dropped.
///
/// Enter it on a current-thread tokio runtime whose time is paused: all tasks run on that thread,
/// and time advances to the next timer whenever all of them wait.
///
/// ```
/// use std::time::Duration;
///
/// let in_order = tokio::runtime::Builder::new_current_thread()
///     .enable_time()
///     .start_paused(true)
///     .build()?;
/// in_order.block_on(async {
///     let _simulation = runtime::SimulatedWorld::enter(7);
///     let begun = runtime::monotonic();
///     tokio::time::sleep(Duration::from_secs(3600)).await;
///     assert_eq!(runtime::monotonic() - begun, Duration::from_secs(3600));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the simulation ends where this is dropped"]
pub struct SimulatedWorld {
    /// The state is the thread's, so its end must be on the same thread.
    of_this_thread: PhantomData<*const ()>,
}

impl SimulatedWorld {
    /// Enters a simulation whose random numbers follow from `seed`. One that runs on this thread is
    /// replaced.
    pub fn enter(seed: u64) -> Self {
        STATE.set(Some(WorldState {
            start: tokio::time::Instant::now().into_std(),
            random: seed,
        }));
        Self {
            of_this_thread: PhantomData,
        }
    }
}

impl Drop for SimulatedWorld {
    fn drop(&mut self) {
        STATE.set(None);
    }
}

/// Returns whether the calling thread is in a [`SimulatedWorld`].
#[inline]
pub fn is_simulated() -> bool {
    STATE.get().is_some()
}

/// Returns when the simulation began.
pub(crate) fn start() -> Option<Instant> {
    STATE.get().map(|state| state.start)
}

/// Returns the wall-clock time at which a simulation begins.
pub(crate) fn epoch() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(EPOCH_S)
}

/// Returns the simulation's next random number.
pub(crate) fn next_random() -> Option<u64> {
    let mut state = STATE.get()?;
    state.random = state.random.wrapping_add(STEP);
    STATE.set(Some(state));
    Some(mix(state.random))
}

fn mix(state: u64) -> u64 {
    let once = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let twice = (once ^ (once >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    twice ^ (twice >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{chance, random, spawn_blocking, system_time};

    #[tokio::test(start_paused = true)]
    async fn random_numbers_follow_from_the_seed() {
        let draw = |seed| {
            let _simulation = SimulatedWorld::enter(seed);
            [random(), random(), random()]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_ne!(random(), random(), "without a simulation, the system draws");
    }

    #[test]
    fn a_chance_lies_between_0_and_1() {
        assert!(
            (0..1000)
                .map(|_| chance())
                .all(|drawn| (0.0..=1.0).contains(&drawn))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn wall_time_follows_virtual_time_from_a_fixed_day() {
        let _simulation = SimulatedWorld::enter(1);
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!(system_time(), epoch() + Duration::from_secs(90));
    }

    #[tokio::test(start_paused = true)]
    async fn blocking_work_runs_on_the_simulations_thread_and_takes_no_virtual_time() {
        let _simulation = SimulatedWorld::enter(1);
        let (begun, here) = (tokio::time::Instant::now(), std::thread::current().id());
        let there = spawn_blocking(|| {
            std::thread::sleep(Duration::from_millis(20));
            std::thread::current().id()
        });
        assert_eq!(there.await.unwrap(), here);
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn the_system_answers_again_when_the_simulation_has_ended() {
        drop(SimulatedWorld::enter(1));
        assert!(!is_simulated());
        assert!(system_time() > epoch());
    }
}
