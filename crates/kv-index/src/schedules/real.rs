//! As the machine schedules them.

use super::scenario;

#[test]
fn answers_are_right_beside_two_writers() {
    // An interpreter is slow, but it makes up schedules and stale values where a processor hardly would.
    let scenarios = if cfg!(miri) { 6 } else { 300 };
    (0..scenarios).for_each(scenario::run);
}
