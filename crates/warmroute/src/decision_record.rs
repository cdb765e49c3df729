//! A line of the decision log, as far as the subcommands read it. They ignore all other fields.

use serde::{Deserialize, de::IgnoredAny};
use time::{Date, Month, OffsetDateTime, Time};

#[derive(Debug, Deserialize)]
pub(crate) struct DecisionRecord {
    at: String,
    pub(crate) model: String,
    pub(crate) served_model: Option<String>,
    pub(crate) lora: Option<String>,
    pub(crate) prompt: RecordedPrompt,
    pub(crate) winner: Option<RecordedTarget>,
    #[serde(default)]
    candidates: Vec<RecordedCandidate>,
    pub(crate) prefill: Option<RecordedPrefill>,
    #[serde(default)]
    hold: RecordedWait,
    #[serde(default)]
    pub(crate) attempts: Vec<IgnoredAny>,
    #[serde(default)]
    timing_us: RecordedTiming,
    pub(crate) outcome: Option<RecordedOutcome>,
    pub(crate) chain: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RecordedPrompt {
    pub(crate) tokens: u32,
    pub(crate) block_size: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
pub(crate) struct RecordedTarget {
    worker: Option<String>,
    dp_rank: u32,
}

#[derive(Debug, Deserialize)]
struct RecordedCandidate {
    target: RecordedTarget,
    predicted_cached_tokens: u32,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RecordedPrefill {
    pub(crate) skipped: bool,
}

#[derive(Debug, Default, Deserialize)]
struct RecordedWait {
    held_ms: f64,
}

#[derive(Debug, Default, Deserialize)]
struct RecordedTiming {
    total: f64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RecordedOutcome {
    pub(crate) kind: String,
    pub(crate) ttft_ms: Option<f64>,
    pub(crate) duration_ms: f64,
    pub(crate) prompt_tokens: Option<u32>,
    pub(crate) completion_tokens: Option<u32>,
    pub(crate) cached_tokens: Option<u32>,
}

impl DecisionRecord {
    /// Returns the arrival time of the request, in milliseconds since 1970; `None` if the line has
    /// no valid time.
    pub(crate) fn arrival_ms(&self, outcome: &RecordedOutcome) -> Option<f64> {
        // A receipt is stamped when the head of the reply goes out: with the first token, or with
        // the whole reply.
        Some(unix_ms(&self.at)? - outcome.ttft_ms.unwrap_or(outcome.duration_ms))
    }

    /// Returns the prompt's tokens that were in the target's cache: from its reply, else as
    /// predicted.
    pub(crate) fn cached_tokens(&self, outcome: &RecordedOutcome) -> Option<u32> {
        let expected = || {
            self.candidates
                .iter()
                .find(|row| Some(&row.target) == self.winner.as_ref())
        };
        outcome
            .cached_tokens
            .or_else(|| Some(expected()?.predicted_cached_tokens))
    }

    /// Returns how long the request was in the router before it was sent on, in ms.
    pub(crate) fn total_ms(&self) -> f64 {
        self.timing_us.total / 1e3 + self.hold.held_ms
    }
}

/// Parses a receipt's time, `2026-11-20T17:41:09.123Z`, into milliseconds since 1970.
fn unix_ms(at: &str) -> Option<f64> {
    let digits = |from: usize, to: usize| -> Option<u16> {
        at.get(from..to)
            .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?
            .parse()
            .ok()
    };
    let small = |from: usize| -> Option<u8> { digits(from, from + 2)?.try_into().ok() };
    if at.len() != 24 || !at.ends_with('Z') {
        return None;
    }
    let date = Date::from_calendar_date(
        digits(0, 4)?.into(),
        Month::try_from(small(5)?).ok()?,
        small(8)?,
    )
    .ok()?;
    let time = Time::from_hms_milli(small(11)?, small(14)?, small(17)?, digits(20, 23)?).ok()?;
    Some((OffsetDateTime::new_utc(date, time).unix_timestamp_nanos() / 1_000_000) as f64)
}
