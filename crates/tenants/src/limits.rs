//! The limits of a tenant, and what they are checked against.

use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use kv_blocks::Moment;

use crate::{
    EntryRules,
    bucket::{Rate, TokenBucket},
};

/// The limits of a tenant over all routers; `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TenantLimits {
    /// Requests per second.
    pub(crate) per_second: Option<f64>,
    /// Requests at the same time.
    pub(crate) concurrent: Option<NonZeroU32>,
    /// Replies that stream at the same time.
    pub(crate) streams: Option<NonZeroU32>,
    /// Tokens of prompts per minute.
    prompt_per_minute: Option<NonZeroU32>,
    /// Tokens of replies per minute.
    output_per_minute: Option<NonZeroU32>,
}

impl TenantLimits {
    /// Returns the limits of a tenant's entries; `streams`: that of every tenant.
    pub(crate) fn of(entry: &EntryRules, streams: NonZeroU32) -> Self {
        Self {
            per_second: entry.rate_limit_rps,
            concurrent: entry.max_concurrent,
            streams: Some(streams),
            prompt_per_minute: entry.prompt_tokens_per_minute,
            output_per_minute: entry.output_tokens_per_minute,
        }
    }

    /// Returns whether tokens are limited.
    pub(crate) fn has_tokens(&self) -> bool {
        self.prompt_per_minute.or(self.output_per_minute).is_some()
    }

    /// Returns the share of one of so many routers. Every router lets at least one request run.
    pub(crate) fn share_of(&self, routers: u32) -> Self {
        let routers = NonZeroU32::new(routers).unwrap_or(NonZeroU32::MIN);
        let share = |most: NonZeroU32| {
            NonZeroU32::new(most.get().div_ceil(routers.get())).unwrap_or(NonZeroU32::MIN)
        };
        Self {
            per_second: self.per_second.map(|rate| rate / f64::from(routers.get())),
            concurrent: self.concurrent.map(share),
            streams: self.streams.map(share),
            prompt_per_minute: self.prompt_per_minute.map(share),
            output_per_minute: self.output_per_minute.map(share),
        }
    }
}

/// The number of routers that share the limits of tenants.
#[derive(Clone, Debug)]
pub struct RouterCount(Arc<AtomicU32>);

/// A router alone.
impl Default for RouterCount {
    fn default() -> Self {
        Self(Arc::new(AtomicU32::new(1)))
    }
}

impl RouterCount {
    /// Sets the number, this router included.
    pub fn set(&self, routers: u32) {
        self.0.store(routers.max(1), Relaxed);
    }

    /// Returns the number.
    pub fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenAmounts {
    /// Of its prompt.
    pub prompt: u32,
    /// Of its reply.
    pub output: u32,
}

/// Whose tokens are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Tokens of prompts.
    Prompt,
    /// Tokens of replies.
    Output,
}

impl TokenKind {
    /// Returns its name in errors.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Output => "output",
        }
    }
}

/// Why the tokens of a request do not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokensRefused {
    /// The limit that does not let them pass.
    pub kind: TokenKind,
    /// The limit of this router, in tokens per minute.
    pub per_minute: u32,
    /// Time until they pass.
    pub wait: Duration,
}

/// The tokens of a tenant that may still be used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenBudgets {
    prompt: TokenBucket,
    output: TokenBucket,
}

impl TokenBudgets {
    /// Takes the tokens of a request, all or none.
    pub(crate) fn reserve(
        &mut self,
        amounts: TokenAmounts,
        limits: &TenantLimits,
        now: Moment,
    ) -> Result<(), TokensRefused> {
        let prompt = (TokenKind::Prompt, limits.prompt_per_minute);
        let output = (TokenKind::Output, limits.output_per_minute);
        take(&mut self.prompt, amounts.prompt, prompt, now)?;
        take(&mut self.output, amounts.output, output, now)
            .inspect_err(|_| self.prompt.put_back(f64::from(amounts.prompt)))
    }

    /// Replaces what was reserved by what was used.
    pub(crate) fn settle(
        &mut self,
        reserved: TokenAmounts,
        used: TokenAmounts,
        limits: &TenantLimits,
        now: Moment,
    ) {
        settle(
            &mut self.prompt,
            (reserved.prompt, used.prompt),
            limits.prompt_per_minute,
            now,
        );
        settle(
            &mut self.output,
            (reserved.output, used.output),
            limits.output_per_minute,
            now,
        );
    }
}

/// Takes tokens from a bucket, if there is a limit.
fn take(
    bucket: &mut TokenBucket,
    tokens: u32,
    (kind, per_minute): (TokenKind, Option<NonZeroU32>),
    now: Moment,
) -> Result<(), TokensRefused> {
    let Some(per_minute) = per_minute.map(NonZeroU32::get) else {
        return Ok(());
    };
    let rate = Rate::per_minute(f64::from(per_minute));
    let taken = bucket.take(f64::from(tokens), rate, now);
    taken.map_err(|wait| TokensRefused {
        kind,
        per_minute,
        wait,
    })
}

fn settle(
    bucket: &mut TokenBucket,
    (reserved, used): (u32, u32),
    per_minute: Option<NonZeroU32>,
    now: Moment,
) {
    let Some(per_minute) = per_minute else {
        return;
    };
    if used > reserved {
        let rate = Rate::per_minute(f64::from(per_minute.get()));
        bucket.charge(f64::from(used - reserved), rate, now);
    } else {
        bucket.put_back(f64::from(reserved - used));
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    fn limits(prompt: u32, output: u32) -> TenantLimits {
        TenantLimits {
            prompt_per_minute: NonZeroU32::new(prompt),
            output_per_minute: NonZeroU32::new(output),
            ..TenantLimits::default()
        }
    }

    fn amounts(prompt: u32, output: u32) -> TokenAmounts {
        TokenAmounts { prompt, output }
    }

    #[test]
    #[contract("S72")]
    fn a_request_whose_output_does_not_pass_takes_no_prompt_tokens() {
        let limits = limits(600, 60);
        let mut budgets = TokenBudgets::default();
        assert_eq!(budgets.reserve(amounts(100, 50), &limits, at(0)), Ok(()));
        let refused = budgets.reserve(amounts(500, 20), &limits, at(0));
        let expected = TokensRefused {
            kind: TokenKind::Output,
            per_minute: 60,
            wait: Duration::from_secs(10),
        };
        assert_eq!(refused, Err(expected));
        assert_eq!(budgets.reserve(amounts(500, 0), &limits, at(0)), Ok(()));
        let refused = budgets.reserve(amounts(1, 0), &limits, at(0));
        assert_eq!(refused.map_err(|it| it.kind), Err(TokenKind::Prompt));
    }

    #[test]
    #[contract("S72")]
    fn the_end_replaces_what_was_reserved_by_what_was_used() {
        let limits = limits(600, 600);
        for (reserved, used, left) in [
            (amounts(200, 300), amounts(0, 0), amounts(600, 600)),
            (amounts(200, 300), amounts(250, 100), amounts(350, 500)),
            (amounts(0, 0), amounts(600, 1), amounts(0, 599)),
        ] {
            let mut budgets = TokenBudgets::default();
            assert_eq!(budgets.reserve(reserved, &limits, at(0)), Ok(()));
            budgets.settle(reserved, used, &limits, at(0));
            assert_eq!(budgets.reserve(left, &limits, at(0)), Ok(()), "{used:?}");
            assert!(budgets.reserve(amounts(1, 0), &limits, at(0)).is_err());
            assert!(budgets.reserve(amounts(0, 1), &limits, at(0)).is_err());
        }
    }

    #[test]
    #[contract("F93")]
    fn routers_share_the_limits_and_none_gets_nothing() {
        let all = TenantLimits {
            per_second: Some(9.0),
            concurrent: NonZeroU32::new(4),
            streams: NonZeroU32::new(256),
            ..limits(90, 2)
        };
        let third = TenantLimits {
            per_second: Some(3.0),
            concurrent: NonZeroU32::new(2),
            streams: NonZeroU32::new(86),
            ..limits(30, 1)
        };
        assert_eq!(all.share_of(3), third);
        assert_eq!(all.share_of(1), all);
        assert_eq!(all.share_of(0), all);
        assert_eq!(TenantLimits::default().share_of(3), TenantLimits::default());
    }
}
