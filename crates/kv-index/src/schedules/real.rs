//! The machine's own schedules.

use super::scenario;

#[test]
fn answers_are_right_beside_two_writers() {
    // An interpreter is slow, but it produces schedules and stale values that are rare on a
    // processor.
    let scenarios = if cfg!(miri) { 6 } else { 300 };
    (0..scenarios).for_each(scenario::run);
}
