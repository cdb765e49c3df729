//! Seals and opens envelopes: short values inline, long ones on a blocking thread.

use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use runtime::spawn_blocking;

use crate::{
    CacheEntry, CacheKey,
    counters::CacheCounters,
    hmac_envelope::{HmacEnvelope, VerifiedValue},
};

/// Bytes that take about half a millisecond on a slow machine.
const AT_ONCE: usize = 128 << 10;

/// The current envelope key, and the reporting of broken values.
#[derive(Clone, Debug)]
pub(crate) struct CurrentEnvelope {
    pub(crate) seal: Arc<ArcSwap<HmacEnvelope>>,
    pub(crate) counters: Arc<CacheCounters>,
}

impl CurrentEnvelope {
    pub(crate) async fn close(&self, key: CacheKey, entry: CacheEntry, ends_at: u64) -> Bytes {
        let seal = self.seal.load_full();
        if entry.body.len() <= AT_ONCE {
            return seal.close(&key, &entry, ends_at);
        }
        let (again, body) = (Arc::clone(&seal), entry.clone());
        let closed = spawn_blocking(move || again.close(&key, &body, ends_at)).await;
        // The runtime is shutting down.
        closed.unwrap_or_else(|_| seal.close(&key, &entry, ends_at))
    }

    /// Opens a value. `None`: its MAC is wrong, which is counted and logged, or it is expired,
    /// whatever its store reports. The caller removes it. `now`: seconds since 1970.
    pub(crate) async fn open(
        &self,
        key: CacheKey,
        value: Bytes,
        store: &'static str,
        now: u64,
    ) -> Option<VerifiedValue> {
        let seal = self.seal.load_full();
        let length = value.len();
        let opened = if length <= AT_ONCE {
            seal.open(&key, &value).ok()
        } else {
            spawn_blocking(move || seal.open(&key, &value).ok())
                .await
                .ok()
                .flatten()
        };
        if opened.is_none() {
            self.counters.auth_failures.one();
            tracing::warn!(store, %key, bytes = length, "a stored reply is not as this fleet wrote it: removed, not used");
        }
        opened.filter(|opened| opened.ends_at >= now)
    }
}
