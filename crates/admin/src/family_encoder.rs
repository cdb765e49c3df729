//! Metric families, encoded for one scrape.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, NoLabelSet},
    metrics::MetricType,
};
use routing::DistributionSnapshot;

/// Encoder of one family after the other.
pub(crate) struct FamilyEncoder<'a>(pub(crate) DescriptorEncoder<'a>);

impl FamilyEncoder<'_> {
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Gauge)?
            .encode_gauge(&clamp_to_i64(value))
    }

    pub(crate) fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// `_total` is added by the encoder.
    pub(crate) fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in samples {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        Ok(())
    }

    pub(crate) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        spread: &DistributionSnapshot,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Histogram)?;
        family.encode_histogram::<NoLabelSet>(spread.sum, spread.count(), &spread.ranges, None)
    }
}

/// Gauges are signed; counts beyond half of a `u64` do not occur.
pub(crate) fn clamp_to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
