//! Refreshes of the model list (contracts CH12 and CH13, decision B5).
//!
//! The workers' lists are part of the fleet's snapshot, and clients get that. This module decides
//! when the workers are queried again: in the background once the list is older than the soft
//! limit, and before the answer once it is older than the hard one. One task sends the queries, so
//! a worker gets one, however many clients come at once.

use std::time::Duration;

use config::{CacheSection, ModelAggregationSection, Settings};
use fleet::Fleet;
use kv_blocks::Moment;
use net::Clock;
use parking_lot::{Mutex, RwLock};
use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tokio::sync::{Notify, watch};

/// Longest wait of a client for a refresh; then it gets the list as it is.
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// Longest wait of the task for a refresh.
const LONGEST_REFRESH: Duration = Duration::from_secs(10);

/// Refresh settings of the model list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ModelListSettings {
    /// Has the lifetime of one worker's own list.
    pub(crate) own: CacheSection,
    /// Of the merged list.
    pub(crate) merged: ModelAggregationSection,
}

/// Refreshes the model list.
#[derive(Debug)]
pub(crate) struct ModelListRefresher {
    settings: RwLock<ModelListSettings>,
    state: Mutex<RenewalState>,
    refresh_requested: Notify,
    rounds: watch::Sender<u64>,
    refreshes: Counter,
}

#[derive(Clone, Copy, Debug)]
struct RenewalState {
    renewed: Moment,
    /// Empty results in a row.
    empty: u32,
}

/// The age class of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListAge {
    Fresh,
    /// Usable, and refreshed meanwhile.
    Stale,
    Over,
}

impl ModelListSettings {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self {
            own: settings.cache,
            merged: settings.model_aggregation,
        }
    }

    fn ttl(&self, empty: u32) -> Duration {
        match empty.checked_sub(1) {
            None => self.merged.ttl,
            Some(times) => self
                .merged
                .empty_ttl
                .saturating_mul(1u32.checked_shl(times).unwrap_or(u32::MAX))
                .min(self.merged.empty_max_ttl),
        }
    }

    /// Returns the age class of a list at `now`; `is_empty`: it has no model now, whatever it had
    /// when it was renewed.
    fn age(&self, state: RenewalState, is_empty: bool, now: Moment) -> ListAge {
        let empty = state.empty.max(u32::from(is_empty));
        let (ttl, age) = (self.ttl(empty), now.since(state.renewed));
        if age >= ttl {
            ListAge::Over
        } else if age >= ttl.mul_f64(self.merged.soft_ttl_ratio) && empty == 0 {
            ListAge::Stale
        } else {
            ListAge::Fresh
        }
    }
}

impl ModelListRefresher {
    pub(crate) fn new(settings: ModelListSettings, registry: &mut Registry) -> Self {
        let refreshes = Counter::default();
        let help =
            "Times the workers were asked for their lists of models because the list was old";
        registry.register("warmroute_model_list_refreshes", help, refreshes.clone());
        let state = Mutex::new(RenewalState {
            renewed: Moment::START,
            empty: 0,
        });
        Self {
            settings: RwLock::new(settings),
            state,
            refresh_requested: Notify::new(),
            rounds: watch::Sender::new(0),
            refreshes,
        }
    }

    /// Replaces the settings.
    pub(crate) fn reconfigure(&self, settings: ModelListSettings) {
        *self.settings.write() = settings;
        self.refresh_requested.notify_one();
    }

    fn settings(&self) -> ModelListSettings {
        *self.settings.read()
    }

    /// Triggers a refresh if one is due, and waits for it if the list is too old to use.
    pub(crate) async fn wait_until_usable(&self, fleet: &Fleet, clock: Clock) {
        let mut rounds = self.rounds.subscribe();
        let state = *self.state.lock();
        match self.settings().age(state, is_empty(fleet), clock.now()) {
            ListAge::Fresh => {}
            ListAge::Stale => self.refresh_requested.notify_one(),
            ListAge::Over => {
                self.refresh_requested.notify_one();
                let _ = tokio::time::timeout(LONGEST_WAIT, rounds.changed()).await;
            }
        }
    }

    /// Refreshes the list when a client needs it or it gets old. Never ends.
    pub(crate) async fn run(&self, fleet: &Fleet, clock: Clock) -> std::convert::Infallible {
        loop {
            match self.settings().merged.background() {
                Some(pause) => {
                    let _ = tokio::time::timeout(pause, self.refresh_requested.notified()).await;
                }
                None => self.refresh_requested.notified().await,
            }
            // Another refresh may have finished meanwhile.
            let state = *self.state.lock();
            let settings = self.settings();
            if settings.age(state, is_empty(fleet), clock.now()) == ListAge::Fresh {
                continue;
            }
            let (ttl, reused) = (settings.own.model_ttl, settings.merged.max_entries);
            fleet.refresh_lists(ttl, reused, LONGEST_REFRESH).await;
            {
                let mut state = self.state.lock();
                state.renewed = clock.now();
                state.empty = if is_empty(fleet) {
                    state.empty.saturating_add(1)
                } else {
                    0
                };
            }
            self.refreshes.inc();
            self.rounds.send_modify(|round| *round += 1);
        }
    }
}

fn is_empty(fleet: &Fleet) -> bool {
    fleet.snapshot().model_list().data.is_empty()
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn settings() -> ModelListSettings {
        let merged = ModelAggregationSection {
            ttl: Duration::from_secs(60),
            soft_ttl_ratio: 0.8,
            empty_ttl: Duration::from_secs(5),
            empty_max_ttl: Duration::from_secs(60),
            ..ModelAggregationSection::default()
        };
        ModelListSettings {
            merged,
            ..ModelListSettings::default()
        }
    }

    #[test]
    #[contract("CH13")]
    fn the_ttl_of_an_empty_list_doubles_up_to_the_bound() {
        let seconds: Vec<u64> = (0..8)
            .map(|empty| settings().ttl(empty).as_secs())
            .collect();
        assert_eq!(seconds, [60, 5, 10, 20, 40, 60, 60, 60]);
        assert_eq!(settings().ttl(u32::MAX).as_secs(), 60);
    }

    #[test]
    #[contract("CH12", "CH13")]
    fn between_soft_and_hard_ttl_the_old_list_is_served_and_refreshed() {
        let age = |seconds, empty| {
            let state = RenewalState {
                renewed: Moment::START,
                empty,
            };
            settings().age(state, false, Moment::START + Duration::from_secs(seconds))
        };
        assert_eq!(
            [age(0, 0), age(47, 0), age(48, 0), age(59, 0), age(60, 0)],
            [
                ListAge::Fresh,
                ListAge::Fresh,
                ListAge::Stale,
                ListAge::Stale,
                ListAge::Over
            ]
        );
        assert_eq!(
            [age(4, 1), age(5, 1), age(9, 2), age(10, 2)],
            [ListAge::Fresh, ListAge::Over, ListAge::Fresh, ListAge::Over]
        );
        // A list that lost its last model since it was renewed.
        let full = RenewalState {
            renewed: Moment::START,
            empty: 0,
        };
        let at = |seconds| Moment::START + Duration::from_secs(seconds);
        assert_eq!(
            [4, 5].map(|seconds| settings().age(full, true, at(seconds))),
            [ListAge::Fresh, ListAge::Over]
        );
    }
}
