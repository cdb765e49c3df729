//! The queue of simulation events.

use std::{cmp::Ordering, collections::BinaryHeap};

use kv_blocks::Moment;

/// Future events, earliest first; events at the same moment in the order of insertion.
///
/// Bounded by its producers: one arrival, or one for each session; one step and one wake-up for each
/// engine; and the messages in flight.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    entries: BinaryHeap<ScheduledEvent<T>>,
    written: u64,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self {
            entries: BinaryHeap::new(),
            written: 0,
        }
    }
}

impl<T> EventQueue<T> {
    pub(crate) fn put(&mut self, at: Moment, what: T) {
        self.written += 1;
        self.entries.push(ScheduledEvent {
            at,
            number: self.written,
            what,
        });
    }

    pub(crate) fn next(&mut self) -> Option<(Moment, T)> {
        self.entries.pop().map(|entry| (entry.at, entry.what))
    }
}

#[derive(Debug)]
struct ScheduledEvent<T> {
    at: Moment,
    number: u64,
    what: T,
}

impl<T> Ord for ScheduledEvent<T> {
    /// Reversed, because the heap returns its greatest entry first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<T> PartialOrd for ScheduledEvent<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for ScheduledEvent<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for ScheduledEvent<T> {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_earliest_event_comes_first_and_equal_times_keep_insertion_order() {
        let mut queue = EventQueue::default();
        let at = |ms| Moment::at(Duration::from_millis(ms));
        for (ms, what) in [(5, 'd'), (1, 'a'), (3, 'b'), (3, 'c')] {
            queue.put(at(ms), what);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.next()).collect();
        assert_eq!(
            order,
            [(at(1), 'a'), (at(3), 'b'), (at(3), 'c'), (at(5), 'd')]
        );
    }
}
