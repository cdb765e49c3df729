//! Whether a replica can publish.

use std::time::Duration;

use kv_blocks::Moment;

/// First pause of a replica that cannot publish; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Whether this replica can publish. One that cannot does not try for a while.
#[derive(Debug, Default)]
pub(crate) struct PublishAbility {
    until: Option<Moment>,
    pause: Duration,
}

impl PublishAbility {
    pub(crate) fn is_able(&self, now: Moment) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    pub(crate) fn record_failure(&mut self, now: Moment) {
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.until = Some(now + self.pause);
    }

    pub(crate) fn record_success(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_end_with_a_success() {
        let at = |s| Moment::at(Duration::from_secs(s));
        let mut ability = PublishAbility::default();
        assert!(ability.is_able(at(0)));
        for pause in [5, 10, 20, 40, 60, 60] {
            ability.record_failure(at(100));
            assert!(!ability.is_able(at(100 + pause - 1)));
            assert!(ability.is_able(at(100 + pause)));
        }
        ability.record_success();
        assert!(ability.is_able(at(0)));
    }
}
