//! What a run counted, and its report.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

// Kinds of errors that are told apart; others are counted together.
const MAX_ERROR_KINDS: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Statistics {
    /// Replies with status 200 that were read to their end.
    pub(crate) ok: u64,
    pub(crate) events: u64,
    pub(crate) ended_streams: u64,
    pub(crate) timeouts: u64,
    pub(crate) reply_us: Vec<u32>,
    pub(crate) first_byte_us: Vec<u32>,
    /// Between two reads of a stream.
    pub(crate) gap_us: Vec<u32>,
    statuses: BTreeMap<u16, u64>,
    errors: BTreeMap<String, u64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    seconds: f64,
    ok: u64,
    requests_per_s: f64,
    events: u64,
    events_per_s: f64,
    ended_streams: u64,
    timeouts: u64,
    statuses: BTreeMap<u16, u64>,
    errors: BTreeMap<String, u64>,
    reply_us: Option<Distribution>,
    first_byte_us: Option<Distribution>,
    gap_us: Option<Distribution>,
}

#[derive(Debug, Serialize)]
struct Distribution {
    count: usize,
    mean: f64,
    p50: u32,
    p90: u32,
    p99: u32,
    p999: u32,
    max: u32,
}

impl Statistics {
    pub(crate) fn add_status(&mut self, status: u16) {
        *self.statuses.entry(status).or_default() += 1;
    }

    pub(crate) fn add_error(&mut self, error: &anyhow::Error) {
        let mut kind = format!("{error:#}");
        if self.errors.len() >= MAX_ERROR_KINDS && !self.errors.contains_key(&kind) {
            kind = "other errors".to_owned();
        }
        *self.errors.entry(kind).or_default() += 1;
    }

    pub(crate) fn report(&mut self, elapsed: Duration) -> Report {
        let seconds = elapsed.as_secs_f64();
        Report {
            seconds,
            ok: self.ok,
            requests_per_s: self.ok as f64 / seconds,
            events: self.events,
            events_per_s: self.events as f64 / seconds,
            ended_streams: self.ended_streams,
            timeouts: self.timeouts,
            statuses: std::mem::take(&mut self.statuses),
            errors: std::mem::take(&mut self.errors),
            reply_us: Distribution::of(&mut self.reply_us),
            first_byte_us: Distribution::of(&mut self.first_byte_us),
            gap_us: Distribution::of(&mut self.gap_us),
        }
    }
}

impl Distribution {
    fn of(values: &mut [u32]) -> Option<Self> {
        values.sort_unstable();
        let max = *values.last()?;
        let at = |share: f64| values[((values.len() - 1) as f64 * share) as usize];
        let sum: f64 = values.iter().map(|value| f64::from(*value)).sum();
        Some(Self {
            count: values.len(),
            mean: sum / values.len() as f64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max,
        })
    }
}
