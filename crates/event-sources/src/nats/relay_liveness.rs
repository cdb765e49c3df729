//! The schedule of liveness checks of the relay.

use std::time::Duration;

use kv_blocks::Moment;

/// Interval of checks while the relay is absent.
const ABSENT: Duration = Duration::from_secs(2);
/// Silence after which a present relay is checked.
const QUIET: Duration = Duration::from_secs(15);

/// A reader's knowledge of its relay, by the reader's clock.
#[derive(Debug, Default)]
pub(crate) struct RelayLiveness {
    /// Whether the relay is there and connected to its engine.
    present: bool,
    /// Time of its last message, or of the last check without an answer. `None`: neither since the
    /// connection was made, or a check was requested.
    since: Option<Moment>,
}

impl RelayLiveness {
    /// Records a sign of the relay; returns whether it was absent before.
    pub(crate) fn record_seen(&mut self, now: Moment) -> bool {
        self.since = Some(now);
        !std::mem::replace(&mut self.present, true)
    }

    /// Records that the relay or its engine is absent; returns whether it was present before.
    pub(crate) fn record_missed(&mut self, now: Moment) -> bool {
        self.since = Some(now);
        std::mem::replace(&mut self.present, false)
    }

    /// Makes a check due at once.
    pub(crate) fn request_check(&mut self) {
        self.since = None;
    }

    /// Returns whether a check is due.
    pub(crate) fn is_due(&self, now: Moment) -> bool {
        let wait = if self.present { QUIET } else { ABSENT };
        self.since.is_none_or(|since| now.since(since) >= wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    #[test]
    fn a_relay_is_probed_at_once_then_while_it_is_away_and_when_it_is_quiet() {
        let mut liveness = RelayLiveness::default();
        assert!(liveness.is_due(at(0)));
        assert!(!liveness.record_missed(at(0)), "it was away before");
        assert!(!liveness.is_due(at(1)) && liveness.is_due(at(2)));
        assert!(liveness.record_seen(at(2)));
        assert!(!liveness.record_seen(at(3)), "no news");
        assert!(!liveness.is_due(at(17)) && liveness.is_due(at(18)));
        assert!(liveness.record_missed(at(18)), "it was present before");
        liveness.request_check();
        assert!(liveness.is_due(at(18)));
    }
}
