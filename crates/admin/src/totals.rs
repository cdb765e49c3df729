//! `GET /admin/stats`: every counter of `/metrics`, summed over its labels.
//!
//! The values are read from the same page that scrapers get, so that the two cannot differ.

use std::collections::BTreeMap;

use api::CounterTotals;
use axum::{extract::State, response::Response};

use crate::{MetricsPage, response};

/// Counters that are listed from the start: on the page they appear with their first worker or
/// event.
const FROM_THE_START: [&str; 13] = [
    "warmroute_decisions_total",
    "warmroute_upstream_failures_total",
    "warmroute_prompt_tokens_total",
    "warmroute_predicted_cached_tokens_total",
    "warmroute_actual_cached_tokens_total",
    "warmroute_parity_requests_total",
    "warmroute_kv_events_total",
    "warmroute_kv_events_ignored_total",
    "warmroute_kv_decode_errors_total",
    "warmroute_kv_gaps_total",
    "warmroute_kv_resets_total",
    "warmroute_config_reloads_total",
    "warmroute_sink_errors_total",
];

pub(crate) async fn stats(State(metrics): State<MetricsPage>) -> Response {
    match metrics.text() {
        Ok(page) => response::json(&CounterTotals {
            totals: totals(&page),
        }),
        Err(error) => response::error(&error),
    }
}

/// Returns the sums of the counters on a page.
fn totals(page: &str) -> BTreeMap<String, u64> {
    let from_the_start = FROM_THE_START.into_iter();
    let mut totals: BTreeMap<String, u64> =
        from_the_start.map(|name| (name.to_owned(), 0)).collect();
    let mut counter = "";
    for line in page.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            counter = family.strip_suffix(" counter").unwrap_or_default();
        } else if !counter.is_empty() && !line.starts_with('#') {
            // The value comes last, whatever the labels contain: a worker's name may have spaces
            // and braces.
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let value = line
                .rsplit(' ')
                .next()
                .and_then(|value| value.parse::<u64>().ok());
            if let Some(value) = value.filter(|_| name.strip_suffix("_total") == Some(counter)) {
                *totals.entry(name.to_owned()).or_default() += value;
            }
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("V43")]
    fn only_counters_are_summed_over_their_labels() {
        let page = "# HELP a_b Things.\n# TYPE a_b counter\na_b_total{worker=\"x {y} 9\",kind=\"k\"} 3\n\
                    a_b_total{worker=\"z\"} 4\n# TYPE plain counter\nplain_total 5\n# TYPE g gauge\ng 7\n\
                    # TYPE h histogram\nh_count 8\nh_sum 1.5\n# EOF\n";
        let totals = totals(page);
        assert_eq!((totals["a_b_total"], totals["plain_total"]), (7, 5));
        assert_eq!(totals.len(), 2 + FROM_THE_START.len(), "{totals:?}");
        assert_eq!(totals["warmroute_kv_gaps_total"], 0);
    }
}
