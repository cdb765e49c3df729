//! Counters of a controller.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Result of a prompt lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookupResult {
    /// Some worker holds part of it.
    Matched,
    /// No worker holds any of it.
    Nothing,
    /// No answer within the budget.
    Late,
    /// An unusable answer, or none because of a broken connection.
    Failed,
    /// No lookup: the controller is known not to answer.
    Unreachable,
    /// No lookup: too many queries are in flight.
    Busy,
    /// No lookup: the tokens of the prompt are not known.
    NoTokens,
}

impl LookupResult {
    /// All results.
    pub const ALL: [Self; 7] = [
        Self::Matched,
        Self::Nothing,
        Self::Late,
        Self::Failed,
        Self::Unreachable,
        Self::Busy,
        Self::NoTokens,
    ];

    /// Returns the value of the label `result`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Matched => "matched",
            Self::Nothing => "nothing",
            Self::Late => "late",
            Self::Failed => "failed",
            Self::Unreachable => "away",
            Self::Busy => "busy",
            Self::NoTokens => "no_tokens",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The metric families; every series exists from the start.
#[derive(Debug, Default)]
pub(crate) struct LmcacheTelemetry {
    lookups: Family<ResultLabel, Counter>,
    polls: Family<ResultLabel, Counter>,
    workers: Gauge,
}

const ANSWERED: ResultLabel = ResultLabel { result: "answered" };
const NOT_ANSWERED: ResultLabel = ResultLabel { result: "failed" };

impl LmcacheTelemetry {
    pub(crate) fn registered(registry: &mut Registry) -> Self {
        let telemetry = Self::default();
        for result in LookupResult::ALL {
            drop(telemetry.lookups.get_or_create(&ResultLabel {
                result: result.as_str(),
            }));
        }
        drop(telemetry.polls.get_or_create(&ANSWERED));
        drop(telemetry.polls.get_or_create(&NOT_ANSWERED));
        let Self {
            lookups,
            polls,
            workers,
        } = &telemetry;
        let help = "Requests by what came of asking LMCache's controller who holds their prompt";
        registry.register("warmroute_lmcache_lookups", help, lookups.clone());
        let help = "Questions to LMCache's controller of how much each worker holds";
        registry.register("warmroute_lmcache_polls", help, polls.clone());
        let help = "Workers that LMCache's controller knows; 0 while it does not answer";
        registry.register("warmroute_lmcache_workers", help, workers.clone());
        telemetry
    }

    pub(crate) fn record_lookup(&self, result: LookupResult) {
        self.lookups
            .get_or_create(&ResultLabel {
                result: result.as_str(),
            })
            .inc();
    }

    /// Records a poll. `workers`: how many the controller knows; `None`: it did not answer.
    pub(crate) fn polled(&self, workers: Option<usize>) {
        self.polls
            .get_or_create(if workers.is_some() {
                &ANSWERED
            } else {
                &NOT_ANSWERED
            })
            .inc();
        self.workers.set(
            workers
                .and_then(|workers| i64::try_from(workers).ok())
                .unwrap_or(0),
        );
    }
}
