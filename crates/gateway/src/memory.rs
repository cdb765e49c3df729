//! Memory pressure: the router gives up caches and new work, step by step, as the process nears its
//! memory budget (`server.memory_budget`).
//!
//! Caches go first, then large bodies, then new requests, at last new connections. A running stream
//! is never touched.
//!
//! **Invariant**: a stage lasts until the memory in use is [`SLACK`] below its start, so that none
//! flickers.

use dialect::{ApiError, ErrorCode};
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use tokio::sync::watch;

use crate::metrics::MEMORY;

/// The stage of memory pressure. Each stage includes the ones before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MemoryStage {
    /// No pressure.
    #[default]
    Normal,
    /// Caches shrink to half of their bounds.
    SmallCaches,
    /// Caches add nothing, and large bodies are refused.
    SmallBodies,
    /// New requests are refused.
    Shedding,
    /// New connections are not accepted.
    NotAccepting,
}

/// Each stage but the first, with the share of the budget, in percent, at which it begins.
const STEPS: [(MemoryStage, u64); 4] = [
    (MemoryStage::SmallCaches, 80),
    (MemoryStage::SmallBodies, 90),
    (MemoryStage::Shedding, 95),
    (MemoryStage::NotAccepting, 98),
];
/// In percent of the budget.
const SLACK: u64 = 2;
/// Bodies up to this size are accepted as long as any request is.
pub(crate) const SMALL_BODY: u64 = 1024 * 1024;
/// `Retry-After` under pressure, in seconds.
const RETRY_S: u32 = 2;

impl MemoryStage {
    /// Returns the next stage when `used` of `budget` bytes are in use.
    fn next(self, used: u64, budget: u64) -> Self {
        let is_reached = |stage: Self, percent: u64| {
            let percent = if stage <= self {
                percent - SLACK
            } else {
                percent
            };
            u128::from(used) * 100 >= u128::from(budget) * u128::from(percent)
        };
        STEPS
            .into_iter()
            .rev()
            .find(|(stage, percent)| is_reached(*stage, *percent))
            .map_or(Self::Normal, |(stage, _)| stage)
    }

    /// Returns the name in logs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::SmallCaches => "small_caches",
            Self::SmallBodies => "small_bodies",
            Self::Shedding => "shedding",
            Self::NotAccepting => "not_accepting",
        }
    }
}

/// The current stage of the process.
#[derive(Debug, Default)]
pub(crate) struct MemoryPressure {
    stage: watch::Sender<MemoryStage>,
    gauge: Gauge,
}

impl MemoryPressure {
    pub(crate) fn registered(registry: &mut Registry) -> Self {
        let memory = Self::default();
        let help = "What is given up for want of memory: 0 nothing, 1 half of the caches, 2 large bodies, 3 new requests, \
                    4 new connections";
        registry.register("warmroute_memory_stage", help, memory.gauge.clone());
        memory
    }

    /// Returns the current stage.
    pub(crate) fn stage(&self) -> MemoryStage {
        *self.stage.borrow()
    }

    /// Records the bytes in use; `None`: no budget, or unknown. Returns the old and the new stage
    /// if they differ.
    pub(crate) fn observe(
        &self,
        used: Option<u64>,
        budget: Option<u64>,
    ) -> Option<(MemoryStage, MemoryStage)> {
        let before = self.stage();
        let now = used
            .zip(budget)
            .map_or(MemoryStage::Normal, |(used, budget)| {
                before.next(used, budget)
            });
        if before == now {
            return None;
        }
        self.stage.send_replace(now);
        self.gauge.set(now as i64);
        Some((before, now))
    }

    /// Resolves when new connections may be accepted.
    pub(crate) async fn has_room(&self) {
        self.reached(|stage| stage < MemoryStage::NotAccepting)
            .await;
    }

    /// Resolves when no more connections may be accepted.
    pub(crate) async fn is_full(&self) {
        self.reached(|stage| stage >= MemoryStage::NotAccepting)
            .await;
    }

    async fn reached(&self, is_it: impl Fn(MemoryStage) -> bool) {
        // `self` owns the sender, so it cannot be dropped meanwhile.
        drop(self.stage.subscribe().wait_for(|stage| is_it(*stage)).await);
    }

    /// Admits a request with a body of this many bytes, as far as known.
    pub(crate) fn admit(&self, body_bytes: u64) -> Result<(), ApiError> {
        let message = match self.stage() {
            MemoryStage::Normal | MemoryStage::SmallCaches => return Ok(()),
            MemoryStage::SmallBodies if body_bytes <= SMALL_BODY => return Ok(()),
            MemoryStage::SmallBodies => format!(
                "the router is short of memory (server.memory_budget) and takes bodies of at most {SMALL_BODY} bytes, this \
                 one has {body_bytes} or more: try again"
            ),
            MemoryStage::Shedding | MemoryStage::NotAccepting => {
                "the router is out of memory (server.memory_budget) and takes no requests: try again".to_owned()
            }
        };
        Err(ApiError::new(ErrorCode::Overloaded, message)
            .with_retry_after(RETRY_S)
            .because(MEMORY))
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    /// Returns the stages that follow each other as these percentages of the budget are in use.
    fn stages(percentages: &[u64]) -> Vec<MemoryStage> {
        let memory = MemoryPressure::default();
        let mut seen = Vec::new();
        for percent in percentages {
            memory.observe(Some(percent * 10), Some(1000));
            seen.push(memory.stage());
        }
        seen
    }

    #[test]
    #[contract("F75")]
    fn each_stage_begins_at_its_share_of_the_budget_and_ends_well_below_it() {
        use MemoryStage::{Normal, NotAccepting, Shedding, SmallBodies, SmallCaches};
        assert_eq!(
            stages(&[79, 80, 89, 90, 94, 95, 97, 98, 200]),
            [
                Normal,
                SmallCaches,
                SmallCaches,
                SmallBodies,
                SmallBodies,
                Shedding,
                Shedding,
                NotAccepting,
                NotAccepting
            ]
        );
        assert_eq!(
            stages(&[98, 96, 95, 93, 92, 88, 87, 78, 77]),
            [
                NotAccepting,
                NotAccepting,
                Shedding,
                Shedding,
                SmallBodies,
                SmallBodies,
                SmallCaches,
                SmallCaches,
                Normal
            ]
        );
        assert_eq!(stages(&[99, 10]), [NotAccepting, Normal]);
    }

    #[test]
    #[contract("F75", "I10")]
    fn every_transition_is_logged_once_and_the_gauge_follows() {
        let memory = MemoryPressure::default();
        assert_eq!(
            memory.observe(Some(96), Some(100)),
            Some((MemoryStage::Normal, MemoryStage::Shedding))
        );
        assert_eq!(memory.gauge.get(), 3);
        assert_eq!(memory.observe(Some(96), Some(100)), None);
        assert_eq!(
            memory.observe(Some(96), None),
            Some((MemoryStage::Shedding, MemoryStage::Normal)),
            "the budget was taken away"
        );
        assert_eq!(memory.gauge.get(), 0);
        assert_eq!(
            memory.observe(None, Some(100)),
            None,
            "an unreadable value rejects no request"
        );
        assert_eq!(
            memory.observe(Some(u64::MAX), Some(1)).map(|(_, now)| now),
            Some(MemoryStage::NotAccepting)
        );
    }

    #[test]
    #[contract("F75")]
    fn large_bodies_are_rejected_before_all_requests_are() {
        let memory = MemoryPressure::default();
        let refused = |percent: u64, bytes: u64| {
            memory.observe(Some(percent), Some(100));
            memory.admit(bytes).err().map(|error| {
                (
                    error.status,
                    error.counted_as(),
                    error.retry_after().is_some(),
                )
            })
        };
        let shed = Some((503, "memory", true));
        assert_eq!(refused(85, 1 << 30), None);
        assert_eq!(
            (refused(91, SMALL_BODY), refused(91, SMALL_BODY + 1)),
            (None, shed)
        );
        assert_eq!(refused(95, 0), shed);
        assert_eq!(refused(10, 1 << 30), None);
    }
}
