//! The measured figures, and their comparison.

use std::collections::BTreeMap;

use crate::{index::Implementation, phases::Memory, samples};

/// A metric that every workload has for every index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Metric {
    QueryP50,
    QueryP99,
    QueryP50HotPrompt,
    QueryP50AsPairs,
    BatchedQueries,
    EventsBlocks,
    BytesPerMembership,
    QueryP50WithWriter,
    QueryP99WithWriter,
}

impl Metric {
    pub(crate) const ALL: [Self; 9] = [
        Self::QueryP50,
        Self::QueryP99,
        Self::QueryP50HotPrompt,
        Self::QueryP50AsPairs,
        Self::BatchedQueries,
        Self::EventsBlocks,
        Self::BytesPerMembership,
        Self::QueryP50WithWriter,
        Self::QueryP99WithWriter,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::QueryP50 => "query_p50_ns",
            Self::QueryP99 => "query_p99_ns",
            Self::QueryP50HotPrompt => "query_p50_ns_hot_prompt",
            Self::QueryP50AsPairs => "query_p50_ns_as_pairs",
            Self::BatchedQueries => "batched_queries_per_s",
            Self::EventsBlocks => "events_blocks_per_s",
            Self::BytesPerMembership => "bytes_per_membership",
            Self::QueryP50WithWriter => "query_p50_ns_with_writer",
            Self::QueryP99WithWriter => "query_p99_ns_with_writer",
        }
    }

    fn more_is_better(self) -> bool {
        matches!(self, Self::BatchedQueries | Self::EventsBlocks)
    }

    /// Factor by which ours is better: above 1 it is better.
    pub(crate) fn ratio(self, ours: f64, peer: f64) -> f64 {
        if self.more_is_better() {
            ours / peer
        } else {
            peer / ours
        }
    }
}

/// The figures of one repetition of one index with one workload.
pub(crate) type Repetition = Vec<(Metric, f64)>;

/// All figures of one workload.
#[derive(Debug)]
pub(crate) struct WorkloadFigures {
    pub(crate) name: &'static str,
    measured: BTreeMap<(Metric, &'static str), Vec<f64>>,
    pub(crate) memory: Vec<(Implementation, Memory)>,
}

/// A figure of ours and the same figure of a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ComparisonRow {
    pub(crate) metric: Metric,
    pub(crate) ours: Option<f64>,
    pub(crate) peer: Option<f64>,
}

impl ComparisonRow {
    /// Above 1 ours is better. `None` if one of the two was not measured.
    pub(crate) fn ratio(&self) -> Option<f64> {
        Some(self.metric.ratio(self.ours?, self.peer?))
    }
}

impl WorkloadFigures {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            measured: BTreeMap::new(),
            memory: vec![],
        }
    }

    pub(crate) fn add(&mut self, contender: Implementation, repetition: Repetition) {
        for (metric, value) in repetition {
            self.measured
                .entry((metric, contender.name()))
                .or_default()
                .push(value);
        }
    }

    pub(crate) fn add_memory(&mut self, contender: Implementation, memory: Memory) {
        self.add(
            contender,
            vec![(Metric::BytesPerMembership, memory.per_membership())],
        );
        self.memory.push((contender, memory));
    }

    /// The median of the repetitions.
    pub(crate) fn figure(&self, metric: Metric, contender: Implementation) -> Option<f64> {
        samples::median(self.measured.get(&(metric, contender.name()))?.clone())
    }

    /// Compares ours with `peer`, metric by metric.
    pub(crate) fn rows(
        &self,
        peer: Option<Implementation>,
    ) -> impl Iterator<Item = ComparisonRow> + '_ {
        Metric::ALL.into_iter().map(move |metric| ComparisonRow {
            metric,
            ours: self.figure(metric, Implementation::Ours),
            peer: peer.and_then(|peer| self.figure(metric, peer)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_one_means_that_ours_is_better_whichever_way_the_figure_goes() {
        assert_eq!(Metric::QueryP50.ratio(100.0, 400.0), 4.0);
        assert_eq!(Metric::EventsBlocks.ratio(400.0, 100.0), 4.0);
        assert_eq!(Metric::BytesPerMembership.ratio(10.0, 40.0), 4.0);
    }

    #[test]
    fn repetitions_count_by_their_median() {
        let mut figures = WorkloadFigures::new("synthetic_512");
        for value in [5.0, 1.0, 90.0] {
            figures.add(Implementation::Ours, vec![(Metric::QueryP50, value)]);
        }
        let row = figures.rows(Some(Implementation::SmgChain)).next().unwrap();
        assert_eq!((row.ours, row.peer, row.ratio()), (Some(5.0), None, None));
    }
}
