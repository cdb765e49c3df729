//! When a ready worker is probed for whether it honours salts, and what the last probe found.
//!
//! The finding is that of one engine process: an ended process, or another engine at the address,
//! takes it away until the next probe.

use std::time::Duration;

use kv_blocks::Moment;

use crate::SaltSupport;

/// Pause before a probe that showed nothing is repeated, as the engine may have been busy or have
/// evicted the blocks; each further pause is twice as long.
const PROBE_AGAIN: Duration = Duration::from_secs(30);
/// The pause is doubled this often: an engine that never shows anything costs a probe in 32 minutes.
const MOST_DOUBLINGS: u32 = 6;

/// The salt probes of one worker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SaltProbes {
    /// Whether the finding is needed.
    enabled: bool,
    /// Whether a probe of the present engine runs.
    running: bool,
    support: SaltSupport,
    /// Probes in a row that showed nothing.
    fruitless: u32,
    /// When the next probe is made; `None`: not before another event.
    due: Option<Moment>,
}

impl SaltProbes {
    pub(super) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            ..Self::default()
        }
    }

    /// Returns what the last probe found.
    pub(super) fn support(&self) -> SaltSupport {
        self.support
    }

    /// Returns when the next probe is due; `None`: never.
    pub(super) fn due(&self) -> Option<Moment> {
        self.due.filter(|_| self.enabled)
    }

    /// Sets whether the finding is needed; returns whether it was not before.
    pub(super) fn set_enabled(&mut self, enabled: bool) -> bool {
        let before = std::mem::replace(&mut self.enabled, enabled);
        enabled && !before
    }

    /// Requests a probe. The last finding holds meanwhile.
    pub(super) fn request(&mut self, now: Moment) {
        self.due = Some(now);
    }

    /// Drops the finding, and that of a running probe: another engine process answers from now on.
    pub(super) fn forget(&mut self, now: Moment) {
        self.running = false;
        self.support = SaltSupport::Unknown;
        self.fruitless = 0;
        self.due = Some(now);
    }

    pub(super) fn begin(&mut self) {
        self.running = true;
        self.due = None;
    }

    /// Records the result of the running probe; `None`: the worker did not answer.
    pub(super) fn record(&mut self, now: Moment, found: Option<SaltSupport>) {
        if !std::mem::take(&mut self.running) {
            return;
        }
        // One probe shows nothing where its blocks were evicted meanwhile: the second one counts.
        let is_first = self.fruitless == 0 && self.support == SaltSupport::Honoured;
        match found {
            None => {}
            Some(SaltSupport::Unknown) if is_first => {}
            Some(found) => self.support = found,
        }
        if matches!(found, None | Some(SaltSupport::Unknown)) {
            let doublings = self.fruitless.min(MOST_DOUBLINGS);
            self.due = Some(now + PROBE_AGAIN * (1_u32 << doublings));
            self.fruitless = doublings + 1;
        } else {
            self.fruitless = 0;
        }
    }
}
