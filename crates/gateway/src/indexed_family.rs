//! A metric family whose series are found fast.
//!
//! A family of the library hashes its labels with a keyed hash, some 400 instructions each time, and
//! a request touches a dozen series. Here the labels come from closed sets or are the operators'
//! names of workers, so an unkeyed hash is enough.

use std::{collections::HashMap, fmt, hash::Hash, sync::Arc};

use foldhash::fast::RandomState;
use parking_lot::RwLock;
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder},
    metrics::{
        MetricType, TypedMetric,
        family::{Family, MetricConstructor},
    },
};

/// A family with an index of its series.
#[derive(Clone, Debug)]
pub(crate) struct IndexedFamily<L, M, C = fn() -> M> {
    family: Family<L, M, C>,
    series: Arc<RwLock<HashMap<L, M, RandomState>>>,
}

impl<L: Clone + Eq + Hash, M: Clone + Default> Default for IndexedFamily<L, M> {
    fn default() -> Self {
        Self::new_with_constructor(M::default)
    }
}

impl<L: Clone + Eq + Hash, M: Clone, C: MetricConstructor<M>> IndexedFamily<L, M, C> {
    /// Makes a family whose series begin as `constructor` makes them.
    pub(crate) fn new_with_constructor(constructor: C) -> Self {
        Self {
            family: Family::new_with_constructor(constructor),
            series: Arc::default(),
        }
    }

    /// Calls `record` with the series of these labels, which begins here if it is new.
    pub(crate) fn with(&self, labels: &L, record: impl FnOnce(&M)) {
        if let Some(series) = self.series.read().get(labels) {
            return record(series);
        }
        let series = self.family.get_or_create_owned(labels);
        record(&series);
        self.series.write().insert(labels.clone(), series);
    }

    /// Starts the series of these labels.
    pub(crate) fn begin(&self, labels: &L) {
        self.with(labels, |_| {});
    }
}

impl<L, M, C> EncodeMetric for IndexedFamily<L, M, C>
where
    L: EncodeLabelSet + Clone + Eq + Hash,
    M: EncodeMetric + TypedMetric,
    C: MetricConstructor<M>,
{
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        self.family.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::{
        encoding::text::encode, metrics::counter::Counter, registry::Registry,
    };

    use super::*;

    #[test]
    fn a_series_is_one_series_whether_it_is_found_or_begun() {
        let mut registry = Registry::default();
        let family = IndexedFamily::<[(&str, &str); 1], Counter>::default();
        registry.register("things", "Things", family.clone());
        for _ in 0..3 {
            family.with(&[("kind", "a")], |series| {
                series.inc();
            });
        }
        family.begin(&[("kind", "b")]);
        let mut page = String::new();
        encode(&mut page, &registry).unwrap();
        assert!(page.contains("things_total{kind=\"a\"} 3\n"), "{page}");
        assert!(page.contains("things_total{kind=\"b\"} 0\n"), "{page}");
    }
}
