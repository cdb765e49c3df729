//! What runs for a tenant, and what has run.

use std::{
    num::NonZeroU32,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use kv_blocks::Moment;
use parking_lot::Mutex;

use crate::{
    Refusal, TokenAmounts,
    bucket::{Rate, TokenBucket},
    limits::{TenantLimits, TokenBudgets},
    salt::TenantSalt,
};

/// The running state of a tenant. It outlives a reload, and takes memory from the first request on:
/// of 100,000 tenants most have none.
#[derive(Debug, Default)]
pub(crate) struct TenantState(OnceLock<Box<UsedState>>);

/// The name of a tenant, and the state that belongs to it.
pub(crate) type NamedState = (Arc<str>, Arc<TenantState>);

/// The state of a tenant that had a request.
#[derive(Debug, Default)]
struct UsedState {
    requests_left: Mutex<TokenBucket>,
    tokens_left: Mutex<TokenBudgets>,
    in_flight: AtomicU32,
    streams: AtomicU32,
    requests: AtomicU64,
    errors: AtomicU64,
    rate_limited: AtomicU64,
    concurrency_limited: AtomicU64,
    stream_limited: AtomicU64,
    token_limited: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    completion_tokens: AtomicU64,
    /// Derived once: it depends on the name and on a secret that stays.
    salt: OnceLock<TenantSalt>,
}

/// A place among a tenant's concurrent requests. Dropping it frees the place.
#[derive(Debug)]
pub struct TenantPlace(Arc<TenantState>);

impl Drop for TenantPlace {
    fn drop(&mut self) {
        self.0.used().in_flight.fetch_sub(1, Relaxed);
    }
}

/// Tokens of a request, as its worker reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedTokens {
    /// Of its prompt.
    pub prompt: u32,
    /// Those of the prompt that were found in a cache; 0 if the worker does not tell.
    pub cached: u32,
    /// Of its reply.
    pub completion: u32,
}

/// A place among a tenant's replies that stream. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct StreamPlace(Arc<TenantState>);

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.0.used().streams.fetch_sub(1, Relaxed);
    }
}

/// What a tenant's requests have come to since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantCounts {
    /// Requests that run now.
    pub in_flight: u64,
    /// Requests with its key, also refused ones.
    pub requests: u64,
    /// Requests that ended in an error other than a limit.
    pub errors: u64,
    /// Requests above its rate.
    pub rate_limited: u64,
    /// Requests above its number of concurrent ones.
    pub concurrency_limited: u64,
    /// Requests above its number of replies that stream.
    pub stream_limited: u64,
    /// Requests above its tokens per minute.
    pub token_limited: u64,
    /// Prompt tokens that workers reported.
    pub prompt_tokens: u64,
    /// Those of them that workers found in a cache.
    pub cached_tokens: u64,
    /// Tokens of replies that workers reported.
    pub completion_tokens: u64,
}

impl TenantCounts {
    /// Returns the requests above any limit.
    pub fn limited(&self) -> u64 {
        self.rate_limited + self.concurrency_limited + self.stream_limited + self.token_limited
    }
}

impl TenantState {
    /// Returns the state, which is made here at the first request.
    fn used(&self) -> &UsedState {
        self.0.get_or_init(Box::default)
    }

    /// Takes a place among the concurrent requests, then a token: a request that finds no place
    /// takes none.
    pub(crate) fn enter(
        self: &Arc<Self>,
        limits: &TenantLimits,
        now: Moment,
    ) -> Result<TenantPlace, Refusal> {
        let used = self.used();
        let most = limits.concurrent.map_or(u32::MAX, NonZeroU32::get);
        let next = |running: u32| (running < most).then(|| running + 1);
        if used.in_flight.fetch_update(Relaxed, Relaxed, next).is_err() {
            used.concurrency_limited.fetch_add(1, Relaxed);
            return Err(Refusal::ConcurrencyLimited { most });
        }
        let place = TenantPlace(Arc::clone(self));
        let Some(per_second) = limits.per_second else {
            return Ok(place);
        };
        let rate = Rate::per_second(per_second);
        match used.requests_left.lock().take(1.0, rate, now) {
            Ok(()) => Ok(place),
            Err(wait) => {
                used.rate_limited.fetch_add(1, Relaxed);
                Err(Refusal::RateLimited { per_second, wait })
            }
        }
    }

    /// Takes a place among the replies that stream.
    pub(crate) fn begin_stream(
        self: &Arc<Self>,
        limits: &TenantLimits,
    ) -> Result<StreamPlace, Refusal> {
        let used = self.used();
        let most = limits.streams.map_or(u32::MAX, NonZeroU32::get);
        let next = |running: u32| (running < most).then(|| running + 1);
        if used.streams.fetch_update(Relaxed, Relaxed, next).is_err() {
            used.stream_limited.fetch_add(1, Relaxed);
            return Err(Refusal::StreamsLimited { most });
        }
        Ok(StreamPlace(Arc::clone(self)))
    }

    /// Takes the tokens of a request, or says why they do not pass.
    pub(crate) fn reserve_tokens(
        &self,
        amounts: TokenAmounts,
        limits: &TenantLimits,
        now: Moment,
    ) -> Result<(), Refusal> {
        let used = self.used();
        let reserved = used.tokens_left.lock().reserve(amounts, limits, now);
        reserved.map_err(|refused| {
            used.token_limited.fetch_add(1, Relaxed);
            Refusal::TokensLimited(refused)
        })
    }

    /// Replaces the tokens that a request reserved by those that it used.
    pub(crate) fn settle_tokens(
        &self,
        reserved: TokenAmounts,
        used: TokenAmounts,
        limits: &TenantLimits,
        now: Moment,
    ) {
        let mut left = self.used().tokens_left.lock();
        left.settle(reserved, used, limits, now);
    }

    /// Takes a place whatever the limit is, for what stays of a request that has a place.
    pub(crate) fn stay(self: &Arc<Self>) -> TenantPlace {
        self.used().in_flight.fetch_add(1, Relaxed);
        TenantPlace(Arc::clone(self))
    }

    pub(crate) fn is_running(&self) -> bool {
        let used = self.0.get();
        used.is_some_and(|used| used.in_flight.load(Relaxed) > 0)
    }

    pub(crate) fn count_request(&self) {
        self.used().requests.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_error(&self) {
        self.used().errors.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_tokens(&self, tokens: ReportedTokens) {
        let used = self.used();
        let add = |count: &AtomicU64, tokens: u32| count.fetch_add(u64::from(tokens), Relaxed);
        add(&used.prompt_tokens, tokens.prompt);
        add(&used.cached_tokens, tokens.cached.min(tokens.prompt));
        add(&used.completion_tokens, tokens.completion);
    }

    /// Returns the salt of the tenant, which `derive` computes for the first request that needs it.
    pub(crate) fn salt(&self, derive: impl FnOnce() -> TenantSalt) -> TenantSalt {
        *self.used().salt.get_or_init(derive)
    }

    pub(crate) fn counts(&self) -> TenantCounts {
        self.0.get().map(|used| used.counts()).unwrap_or_default()
    }
}

impl UsedState {
    fn counts(&self) -> TenantCounts {
        TenantCounts {
            in_flight: u64::from(self.in_flight.load(Relaxed)),
            requests: self.requests.load(Relaxed),
            errors: self.errors.load(Relaxed),
            rate_limited: self.rate_limited.load(Relaxed),
            concurrency_limited: self.concurrency_limited.load(Relaxed),
            stream_limited: self.stream_limited.load(Relaxed),
            token_limited: self.token_limited.load(Relaxed),
            prompt_tokens: self.prompt_tokens.load(Relaxed),
            cached_tokens: self.cached_tokens.load(Relaxed),
            completion_tokens: self.completion_tokens.load(Relaxed),
        }
    }
}

impl std::iter::Sum for TenantCounts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |one, other| Self {
            in_flight: one.in_flight + other.in_flight,
            requests: one.requests + other.requests,
            errors: one.errors + other.errors,
            rate_limited: one.rate_limited + other.rate_limited,
            concurrency_limited: one.concurrency_limited + other.concurrency_limited,
            stream_limited: one.stream_limited + other.stream_limited,
            token_limited: one.token_limited + other.token_limited,
            prompt_tokens: one.prompt_tokens + other.prompt_tokens,
            cached_tokens: one.cached_tokens + other.cached_tokens,
            completion_tokens: one.completion_tokens + other.completion_tokens,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_has_a_state_from_its_first_request_on() {
        let state = Arc::new(TenantState::default());
        assert_eq!(state.counts(), TenantCounts::default());
        assert!(!state.is_running());
        assert!(state.0.get().is_none(), "a look at it makes none");
        let place = state.enter(&TenantLimits::default(), Moment::START);
        assert!(place.is_ok() && state.is_running());
        drop(place);
        assert!(!state.is_running() && state.0.get().is_some());
        assert!(size_of::<TenantState>() <= 16);
    }
}
