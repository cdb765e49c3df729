//! Entries in Redis, which expires them itself: `key_prefix` and the hex of the key, in an
//! envelope.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use net::Clock;
use redis_store::{FaultKind, RedisFault, RedisValues};

use super::{
    Store, StoreCapabilities, StoreFill, StoreFuture, StoreLookup, StoreStats,
    envelope::CurrentEnvelope,
};
use crate::{
    CacheKey, CacheSelection, StoreFault, engine::CurrentSettings, entry::FoundEntry,
    hmac_envelope::FRAME,
};

/// Its name in faults and log lines.
pub(crate) const NAME: &str = "redis";

/// Maximum number of pages to count: some hundred thousand keys.
const PAGES: usize = 200;

/// The store of `backend: redis`, and of a first tier in Redis.
#[derive(Debug)]
pub(crate) struct RedisStore {
    values: RedisValues,
    sealing: CurrentEnvelope,
    current: Arc<CurrentSettings>,
    clock: Clock,
}

impl RedisStore {
    pub(crate) fn new(
        values: RedisValues,
        sealing: CurrentEnvelope,
        in_force: Arc<CurrentSettings>,
        clock: Clock,
    ) -> Self {
        Self {
            values,
            sealing,
            current: in_force,
            clock,
        }
    }

    async fn find(&self, key: &CacheKey) -> Result<Option<FoundEntry>, StoreFault> {
        let name = key.to_string();
        let found = match self.values.get(&name, self.most()).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(None),
            // The server answered, but the value is unusable: a miss, and no reason to skip the
            // next lookup.
            Err(fault) if !fault.outage && fault.kind == FaultKind::Other => return Ok(None),
            Err(fault) => return Err(store_fault(fault)),
        };
        match self
            .sealing
            .open(*key, Bytes::from(found.bytes), NAME, now(self.clock))
            .await
        {
            Some(opened) => {
                let sealed =
                    Duration::from_secs(opened.ends_at.saturating_sub(now(self.clock)) + 1);
                Ok(Some(FoundEntry {
                    entry: opened.entry,
                    left: found.left.min(sealed),
                }))
            }
            None => {
                // If the removal fails, the next lookup finds the broken value again.
                let _ = self.values.delete(&name).await;
                Ok(None)
            }
        }
    }

    /// Returns the maximum length of a value, bytes.
    fn most(&self) -> usize {
        let settings = self.current.load();
        settings
            .max_response_size
            .max(settings.max_stream_buffer_size)
            .saturating_add(FRAME)
    }
}

impl Store for RedisStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities { counts: false }
    }

    fn is_available(&self) -> bool {
        self.values.pool().is_up()
    }

    fn get(&self, lookup: StoreLookup) -> StoreFuture<'_, Option<FoundEntry>> {
        Box::pin(async move { self.find(&lookup.key).await })
    }

    fn set(&self, fill: StoreFill) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            let ends_at = ends_at(self.clock, fill.ttl);
            let value = self.sealing.close(fill.key, fill.entry, ends_at).await;
            self.values
                .set(&fill.key.to_string(), &value, fill.ttl)
                .await
                .map_err(store_fault)
        })
    }

    fn delete(&self, key: CacheKey) -> StoreFuture<'_, ()> {
        Box::pin(async move {
            self.values
                .delete(&key.to_string())
                .await
                .map_err(store_fault)
        })
    }

    fn clear(&self, selection: CacheSelection) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            self.values
                .clear(|name| selection.contains_name(name))
                .await
                .map_err(store_fault)
        })
    }

    /// Other processes write to the server too.
    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }

    fn count(&self) -> StoreFuture<'_, u64> {
        Box::pin(async move {
            self.values
                .count(PAGES, CacheKey::is_name)
                .await
                .map_err(store_fault)
        })
    }
}

fn ends_at(clock: Clock, ttl: Duration) -> u64 {
    // A lifetime of less than a second ends in the next one.
    now(clock).saturating_add(ttl.as_secs().max(1))
}

fn now(clock: Clock) -> u64 {
    u64::try_from(clock.unix_s()).unwrap_or(0)
}

fn store_fault(fault: RedisFault) -> StoreFault {
    // A server that refuses writes is not unavailable: lookups continue.
    StoreFault {
        store: NAME,
        outage: fault.outage || fault.kind == FaultKind::Timeout,
        reason: fault.reason,
    }
}
