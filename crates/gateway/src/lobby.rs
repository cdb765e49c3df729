//! Room for requests that wait.

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, RwLock};

/// How requests wait.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// While workers that may take them are busy; `None`: not at all.
    pub busy: Option<Duration>,
    /// While no worker can be used; zero: not at all.
    pub nobody: Duration,
    /// Most of them.
    pub max_entries: usize,
    /// Most bytes of their bodies.
    pub max_bytes: u64,
}

/// Counts those who wait, whatever they wait for.
#[derive(Debug)]
pub(crate) struct Lobby {
    rules: RwLock<Waiting>,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    entries: usize,
    bytes: u64,
}

impl Lobby {
    pub(crate) fn new(rules: Waiting) -> Self {
        Self { rules: RwLock::new(rules), inside: Mutex::default() }
    }

    /// How requests wait from now on.
    pub(crate) fn reconfigure(&self, rules: Waiting) {
        *self.rules.write() = rules;
    }

    /// How requests wait.
    pub(crate) fn rules(&self) -> Waiting {
        *self.rules.read()
    }

    /// A seat for a request with a body of so many bytes; `None`: all are taken.
    pub(crate) fn enter(self: &Arc<Self>, bytes: u64) -> Option<Seat> {
        let rules = self.rules();
        let mut inside = self.inside.lock();
        let after = inside.bytes.saturating_add(bytes);
        if inside.entries >= rules.max_entries || after > rules.max_bytes {
            return None;
        }
        (inside.entries, inside.bytes) = (inside.entries + 1, after);
        Some(Seat { lobby: Arc::clone(self), bytes })
    }

    /// Requests that wait.
    pub(crate) fn entries(&self) -> usize {
        self.inside.lock().entries
    }
}

/// A request's place. Dropping it gives it to another.
#[derive(Debug)]
#[must_use = "dropping the seat leaves the room"]
pub(crate) struct Seat {
    lobby: Arc<Lobby>,
    bytes: u64,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut inside = self.lobby.inside.lock();
        (inside.entries, inside.bytes) = (inside.entries - 1, inside.bytes - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_and_bytes_are_bounded_and_come_back() {
        let rules = Waiting { busy: None, nobody: Duration::ZERO, max_entries: 2, max_bytes: 100 };
        let lobby = Arc::new(Lobby::new(rules));
        let first = lobby.enter(60).expect("there is room");
        assert!(lobby.enter(41).is_none(), "too many bytes");
        let second = lobby.enter(40).expect("there is room");
        assert!(lobby.enter(0).is_none(), "too many");
        drop((first, second));
        assert_eq!(lobby.entries(), 0);
        assert!(lobby.enter(100).is_some());
    }
}
