//! The checked settings of a step.

use std::time::Duration;

use engine_model::{EngineTiming, FetchLink, Profile, Scheduling};

use super::error::{EngineError, at_least_one};
use crate::args::{BatchArgs, TimingArgs};

/// The limits, order and speed of a step.
#[derive(Clone, Debug)]
pub(crate) struct BatchConfig {
    pub(crate) max_num_seqs: u32,
    pub(crate) max_num_batched_tokens: u32,
    pub(crate) scheduling: Scheduling,
    pub(crate) timing: EngineTiming,
    /// The time of reads from other engines; `None`: it reads from none.
    pub(crate) p2p: Option<P2pTiming>,
}

/// The time of a read of blocks from another engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct P2pTiming {
    link: FetchLink,
    speed: f64,
}

impl P2pTiming {
    fn new(args: &TimingArgs) -> Result<Option<Self>, EngineError> {
        let floor_ms = not_negative("p2p-floor-ms", args.p2p_floor_ms)?;
        let Some(gb_per_s) = args.p2p_gb_s else {
            return Ok(None);
        };
        let link = FetchLink {
            gb_per_s: positive("p2p-gb-s", gb_per_s)?,
            floor: FetchLink::bounded(floor_ms / 1e3),
        };
        Ok(Some(Self {
            link,
            speed: positive("speed", args.speed)?,
        }))
    }

    /// Returns the time of a read of so many tokens.
    pub(crate) fn time(&self, tokens: u64) -> Duration {
        let time = self.link.floor + self.link.transfer(tokens);
        FetchLink::bounded(time.as_secs_f64() / self.speed)
    }
}

impl BatchConfig {
    pub(super) fn new(args: &BatchArgs, timing_args: &TimingArgs) -> Result<Self, EngineError> {
        at_least_one("max-num-seqs", args.max_num_seqs)?;
        at_least_one("max-num-batched-tokens", args.max_num_batched_tokens)?;
        Ok(Self {
            max_num_seqs: args.max_num_seqs,
            max_num_batched_tokens: args.max_num_batched_tokens,
            scheduling: args.scheduling_policy,
            timing: timing(timing_args)?,
            p2p: P2pTiming::new(timing_args)?,
        })
    }
}

fn timing(args: &TimingArgs) -> Result<EngineTiming, EngineError> {
    let unknown = || {
        EngineError::flag(
            "profile",
            &args.profile,
            format!("one of {}", Profile::names()),
        )
    };
    let profile = Profile::named(&args.profile).ok_or_else(unknown)?;
    let mut timing = EngineTiming::new(profile).speed(positive("speed", args.speed)?);
    if let Some(rate) = args.prefill_tps {
        timing = timing.prefill_tokens_per_s(positive("prefill-tps", rate)?);
    }
    if let Some(ms) = args.itl_ms {
        timing = timing.inter_token_ms(not_negative("itl-ms", ms)?);
    }
    if let Some(ms) = args.overhead_ms {
        timing = timing.overhead_ms(not_negative("overhead-ms", ms)?);
    }
    Ok(timing)
}

fn positive(name: &'static str, value: f64) -> Result<f64, EngineError> {
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(EngineError::flag(name, value, "a number above 0"))
    }
}

fn not_negative(name: &'static str, value: f64) -> Result<f64, EngineError> {
    if value.is_finite() && value >= 0.0 {
        Ok(value)
    } else {
        Err(EngineError::flag(name, value, "a number, 0 or above"))
    }
}
