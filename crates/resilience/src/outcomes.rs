//! Counters of outcomes.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    result: &'static str,
}

/// A family of counters with one label, `result`.
#[derive(Clone, Debug, Default)]
pub struct OutcomeCounters(Family<OutcomeLabel, Counter>);

impl OutcomeCounters {
    /// Registers the family with every possible result, so that each has a series from the start.
    pub fn registered(
        registry: &mut Registry,
        name: &str,
        help: &str,
        all: &[&'static str],
    ) -> Self {
        let outcomes = Self::default();
        registry.register(name, help, outcomes.0.clone());
        for result in all {
            drop(outcomes.0.get_or_create(&OutcomeLabel { result }));
        }
        outcomes
    }

    /// Counts one outcome.
    pub fn count(&self, result: &'static str) {
        self.0.get_or_create(&OutcomeLabel { result }).inc();
    }
}
