//! When the relay is asked whether it is there.

use std::time::Duration;

use kv_blocks::Moment;

/// A relay that is not there is asked for again after this.
const ABSENT: Duration = Duration::from_secs(2);
/// One that was heard of is asked after this long without a word.
const QUIET: Duration = Duration::from_secs(15);

/// What a reader knows of its relay, by the reader's clock.
#[derive(Debug, Default)]
pub(crate) struct RelayLiveness {
    /// It is there and connected to its engine.
    present: bool,
    /// When it was last heard of, or last asked in vain. `None`: never since the connection was made.
    since: Option<Moment>,
}

impl RelayLiveness {
    /// A sign of it; says whether that is news.
    pub(crate) fn record_seen(&mut self, now: Moment) -> bool {
        self.since = Some(now);
        !std::mem::replace(&mut self.present, true)
    }

    /// It is not there, or its engine is not; says whether that is news.
    pub(crate) fn record_missed(&mut self, now: Moment) -> bool {
        self.since = Some(now);
        std::mem::replace(&mut self.present, false)
    }

    /// It is to be asked as soon as possible.
    pub(crate) fn request_check(&mut self) {
        self.since = None;
    }

    /// Whether it is time to ask.
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
    fn a_relay_is_asked_at_once_then_while_it_is_away_and_when_it_is_quiet() {
        let mut knocking = RelayLiveness::default();
        assert!(knocking.is_due(at(0)));
        assert!(!knocking.record_missed(at(0)), "it was not there before");
        assert!(!knocking.is_due(at(1)) && knocking.is_due(at(2)));
        assert!(knocking.record_seen(at(2)));
        assert!(!knocking.record_seen(at(3)), "no news");
        assert!(!knocking.is_due(at(17)) && knocking.is_due(at(18)));
        assert!(knocking.record_missed(at(18)), "it was there before");
        knocking.request_check();
        assert!(knocking.is_due(at(18)));
    }
}
