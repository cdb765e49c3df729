//! The timing of engine steps.

use std::{str::FromStr, time::Duration};

/// Step times of one model on one kind of hardware, fitted to public measurements. Milliseconds
/// throughout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Its name on the command line.
    pub name: &'static str,
    /// Tokens in the device's KV cache.
    pub kv_tokens: u32,
    /// Fixed time of a request before its scheduling.
    pub overhead_ms: f64,
    /// Per prefilled token.
    pub prefill_ms: f64,
    /// Per unit of `end² - start²` of a prefilled chunk: attention over the tokens before it.
    pub attention_ms: f64,
    /// Per step.
    pub step_ms: f64,
    /// Per decoding sequence and step.
    pub sequence_ms: f64,
    /// Per KV token read by a decoding sequence.
    pub kv_token_ms: f64,
    /// Per token reloaded from the host tier.
    pub reload_ms: f64,
}

impl Profile {
    /// All profiles; the first is the default.
    pub const ALL: &[Self] = &[
        // Made up: slow enough to watch, quick enough for tests.
        Self {
            name: "toy",
            kv_tokens: 65_536,
            overhead_ms: 2.0,
            prefill_ms: 0.1,
            attention_ms: 0.0,
            step_ms: 4.0,
            sequence_ms: 0.05,
            kv_token_ms: 0.0,
            reload_ms: 0.005,
        },
        // Least-squares fit to NVIDIA's published sweep of Llama-3.1-8B FP8 on one H200, vLLM 0.10.
        Self {
            name: "8b-h200",
            kv_tokens: 945_029,
            overhead_ms: 14.1,
            prefill_ms: 0.014_109_7,
            attention_ms: 4.919e-7,
            step_ms: 4.452,
            sequence_ms: 0.022_24,
            kv_token_ms: 3.159_6e-5,
            reload_ms: 0.002_6,
        },
        // The same source, Llama-3.3-70B FP8 on four H100; cache size by memory arithmetic.
        Self {
            name: "70b-h100x4",
            kv_tokens: 600_000,
            overhead_ms: 7.77,
            prefill_ms: 0.048_797_5,
            attention_ms: 1.112_8e-6,
            step_ms: 10.827,
            sequence_ms: 0.057_76,
            kv_token_ms: 9.740_7e-5,
            reload_ms: 0.006_5,
        },
        // The same source, two H100.
        Self {
            name: "70b-h100x2",
            kv_tokens: 224_133,
            overhead_ms: 10.2,
            prefill_ms: 0.080_531_5,
            attention_ms: 2.283_6e-6,
            step_ms: 14.244,
            sequence_ms: 0.071_43,
            kv_token_ms: 1.735_82e-4,
            reload_ms: 0.006_5,
        },
        // Approximate: cache size and peak prefill as published for Qwen3-32B, the rest scaled from
        // the line above.
        Self {
            name: "32b-h100x2",
            kv_tokens: 307_328,
            overhead_ms: 10.0,
            prefill_ms: 0.048_8,
            attention_ms: 1.6e-6,
            step_ms: 11.0,
            sequence_ms: 0.057_3,
            kv_token_ms: 1.39e-4,
            reload_ms: 0.005,
        },
    ];

    /// Returns the profile with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|profile| profile.name == name)
            .copied()
    }

    /// Returns the names of all profiles, for messages.
    pub fn names() -> String {
        Self::ALL
            .iter()
            .map(|profile| profile.name)
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// Returns the time of tokens `start..end` of a prompt, in ms, without the step that computes
    /// them.
    pub fn prefill_ms_of(&self, start: u32, end: u32) -> f64 {
        let (start, end) = (f64::from(start), f64::from(end));
        self.prefill_ms * (end - start) + self.attention_ms * (end * end - start * start)
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        Self::named(name).ok_or(UnknownProfile)
    }
}

/// No profile has this name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected one of {}", Profile::names())]
pub struct UnknownProfile;

/// A profile with the settings of one engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineTiming {
    profile: Profile,
    speed: f64,
}

/// The work of one step that determines its length.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepWork {
    pub(crate) prefill_ms: f64,
    pub(crate) decoding: u32,
    pub(crate) kv_tokens: u64,
    pub(crate) reloaded_tokens: u64,
}

impl EngineTiming {
    /// Returns the timing of `profile` at its own pace.
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            speed: 1.0,
        }
    }

    /// Sets the prefill rate, independent of the context's length.
    #[must_use]
    pub fn prefill_tokens_per_s(mut self, rate: f64) -> Self {
        self.profile.prefill_ms = 1e3 / rate;
        self.profile.attention_ms = 0.0;
        self
    }

    /// Sets the time between tokens, independent of the batch.
    #[must_use]
    pub fn inter_token_ms(mut self, ms: f64) -> Self {
        self.profile.step_ms = ms;
        self.profile.sequence_ms = 0.0;
        self.profile.kv_token_ms = 0.0;
        self
    }

    /// Sets the fixed time per request.
    #[must_use]
    pub fn overhead_ms(mut self, ms: f64) -> Self {
        self.profile.overhead_ms = ms;
        self
    }

    /// Divides every duration by `speed`, which is positive.
    #[must_use]
    pub fn speed(mut self, speed: f64) -> Self {
        self.speed = speed;
        self
    }

    /// Returns the profile with its overrides.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    pub(crate) fn overhead(&self) -> Duration {
        self.scaled(self.profile.overhead_ms)
    }

    /// Returns the prefill time of tokens `start..end`, unscaled, in ms.
    pub(crate) fn prefill_ms(&self, start: u32, end: u32) -> f64 {
        self.profile.prefill_ms_of(start, end)
    }

    pub(crate) fn step(&self, work: StepWork) -> Duration {
        let profile = &self.profile;
        self.scaled(
            profile.step_ms
                + work.prefill_ms
                + profile.sequence_ms * f64::from(work.decoding)
                + profile.kv_token_ms * work.kv_tokens as f64
                + profile.reload_ms * work.reloaded_tokens as f64,
        )
    }

    fn scaled(&self, ms: f64) -> Duration {
        // An invalid speed or rate gives an invalid duration: use the shortest one instead.
        Duration::try_from_secs_f64(ms / 1e3 / self.speed).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_costs_its_base_its_prefill_and_its_batch() {
        let timing = EngineTiming::new(Profile::named("8b-h200").unwrap());
        let work = StepWork {
            prefill_ms: timing.prefill_ms(0, 1_000),
            decoding: 10,
            kv_tokens: 5_000,
            reloaded_tokens: 0,
        };
        let expected = 4.452 + 14.1097 + 4.919e-7 * 1e6 + 0.2224 + 0.157_98;
        assert!((timing.step(work).as_secs_f64() * 1e3 - expected).abs() < 1e-6);
    }

    #[test]
    fn speed_divides_every_duration() {
        let timing = EngineTiming::new(Profile::ALL[0])
            .inter_token_ms(10.0)
            .overhead_ms(30.0)
            .speed(10.0);
        assert_eq!(timing.step(StepWork::default()), Duration::from_millis(1));
        assert_eq!(timing.overhead(), Duration::from_millis(3));
    }
}
