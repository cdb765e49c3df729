//! Writes metric families in the text format.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, NoLabelSet},
    metrics::MetricType,
};

/// Writer of metric families.
pub(super) struct SeriesWriter<'a>(pub(super) DescriptorEncoder<'a>);

impl SeriesWriter<'_> {
    /// Writes a family of counters; the encoder adds `_total` to the name.
    pub(super) fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, u64)>,
    ) -> Result<(), fmt::Error> {
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

    /// Writes a family of gauges.
    pub(super) fn gauges<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, V)>,
    ) -> Result<(), fmt::Error> {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in samples {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }
}
