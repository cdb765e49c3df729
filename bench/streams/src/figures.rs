//! The table.

use crate::{client::Samples, proxy::Usage};

pub(crate) const HEADER: &str = "\
| target | events | events/s | late p50 ms | late p99 ms | gap p50 ms | gap p99 ms | CPU us/event | idle MB | peak MB | KB/stream |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|";

/// Returns one row of the table.
pub(crate) fn row(name: &str, samples: &Samples, usage: Option<&Usage>) -> String {
    let ms = |values: &[u64], percent| percentile(values, percent) as f64 / 1e3;
    let events = samples.events as f64;
    let streams = (samples.late.len() - samples.gaps.len()).max(1) as f64;
    let used = usage.map_or_else(
        || "- | - | - | -".to_owned(),
        |usage| {
            format!(
                "{:.2} | {:.1} | {:.1} | {:.1}",
                usage.cpu.as_secs_f64() * 1e6 / events,
                usage.resident_kib as f64 / 1024.0,
                usage.peak_kib as f64 / 1024.0,
                usage.peak_kib.saturating_sub(usage.resident_kib) as f64 / streams
            )
        },
    );
    format!(
        "| {name} | {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.2} | {used} |",
        samples.events,
        events / samples.took.as_secs_f64(),
        ms(&samples.late, 50),
        ms(&samples.late, 99),
        ms(&samples.gaps, 50),
        ms(&samples.gaps, 99),
    )
}

/// Returns the value below which this percentage of the values is.
fn percentile(values: &[u64], percent: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_of_the_list() {
        let values: Vec<_> = (1..=200).rev().collect();
        assert_eq!(
            (percentile(&values, 50), percentile(&values, 99)),
            (101, 199)
        );
        assert_eq!((percentile(&[7], 99), percentile(&[], 50)), (7, 0));
    }
}
