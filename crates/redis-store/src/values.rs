//! Values under keys with a common prefix: the interface of Redis for a cache.
//!
//! Not here: the content of a value, its validation, and the caller's time limit.
//!
//! **Invariant**: only keys that begin with the prefix are removed.

use std::{sync::Arc, time::Duration};

use redis::{Pipeline, Value};

use crate::{Operation, RedisFault, RedisPool, page};

/// Bytes that the answer to a lookup may have beside the value.
const FRAMING: usize = 4_096;

/// The values under one prefix.
#[derive(Clone, Debug)]
pub struct RedisValues {
    pool: Arc<RedisPool>,
    prefix: String,
}

/// A value and its remaining lifetime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisValue {
    /// The value.
    pub bytes: Vec<u8>,
    /// Remaining lifetime; zero if the value does not expire or the lifetime is not known.
    pub left: Duration,
}

impl RedisValues {
    /// Creates the store; `prefix` is not a pattern, which the configuration checks.
    pub fn new(pool: Arc<RedisPool>, prefix: String) -> Self {
        Self { pool, prefix }
    }

    /// Returns the pool.
    pub fn pool(&self) -> &Arc<RedisPool> {
        &self.pool
    }

    /// Returns the value under prefix and `name`, of at most `most` bytes.
    ///
    /// # Errors
    /// Redis did not answer, the value is longer, or it is not a string.
    pub async fn get(&self, name: &str, most: usize) -> Result<Option<RedisValue>, RedisFault> {
        let key = self.key(name);
        let mut pipeline = Pipeline::new();
        pipeline
            .ignore_errors()
            .cmd("GET")
            .arg(&key)
            .cmd("PTTL")
            .arg(&key);
        let shared = &self.pool.shared;
        let answers = shared
            .send_limited(Operation::Get, &pipeline, most.saturating_add(FRAMING))
            .await?;
        let mut answers = answers.into_iter();
        let read = match (answers.next(), answers.next()) {
            (Some(Value::Nil), _) => Ok(None),
            (Some(Value::BulkString(bytes)), left) => {
                let left = if let Some(Value::Int(left)) = left {
                    u64::try_from(left).unwrap_or(0)
                } else {
                    0
                };
                Ok(Some(RedisValue {
                    bytes,
                    left: Duration::from_millis(left),
                }))
            }
            (Some(Value::ServerError(error)), _) => Err(RedisFault::from(&error.into())),
            _ => Err(RedisFault::unusable("value")),
        };
        read.inspect_err(|fault| shared.refused(fault))
    }

    /// Stores a value for `ttl`.
    ///
    /// # Errors
    /// The value is not stored, or possibly not.
    pub async fn set(&self, name: &str, bytes: &[u8], ttl: Duration) -> Result<(), RedisFault> {
        let mut pipeline = Pipeline::new();
        let set = pipeline
            .ignore_errors()
            .cmd("SET")
            .arg(self.key(name))
            .arg(bytes);
        match ttl.subsec_nanos() {
            0 => set.arg("EX").arg(ttl.as_secs().max(1)),
            _ => set
                .arg("PX")
                .arg(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1)),
        };
        self.done(Operation::Set, &pipeline).await
    }

    /// Removes a value.
    ///
    /// # Errors
    /// The value may still exist.
    pub async fn delete(&self, name: &str) -> Result<(), RedisFault> {
        let mut pipeline = Pipeline::new();
        pipeline.ignore_errors().cmd("DEL").arg(self.key(name));
        self.done(Operation::Delete, &pipeline).await
    }

    /// Removes every value under the prefix whose name `is_ours` accepts, page by page, and returns
    /// their number. Values written meanwhile may be removed or stay.
    ///
    /// # Errors
    /// Some values may still exist.
    pub async fn clear(&self, is_ours: impl Fn(&str) -> bool) -> Result<u64, RedisFault> {
        let shared = &self.pool.shared;
        let mut pages = page::KeyPages::new(shared, &self.prefix);
        let mut removed = 0;
        while let Some(keys) = pages.next().await? {
            let mut pipeline = Pipeline::new();
            let remove = pipeline.ignore_errors().cmd("DEL");
            let mut any = false;
            for key in &keys {
                if self.is_one_of(key, &is_ours) {
                    remove.arg(key);
                    any = true;
                }
            }
            if !any {
                continue;
            }
            match shared.send(Operation::Delete, &pipeline).await?.first() {
                Some(Value::Int(count)) => removed += u64::try_from(*count).unwrap_or(0),
                Some(Value::ServerError(error)) => {
                    let fault = RedisFault::from(&error.clone().into());
                    shared.refused(&fault);
                    return Err(fault);
                }
                _ => return Err(RedisFault::unusable("number of keys")),
            }
        }
        Ok(removed)
    }

    /// Counts the values under the prefix whose name `is_ours` accepts, in the first `pages` pages.
    ///
    /// # Errors
    /// Redis did not answer.
    pub async fn count(
        &self,
        pages: usize,
        is_ours: impl Fn(&str) -> bool,
    ) -> Result<u64, RedisFault> {
        let mut scan = page::KeyPages::new(&self.pool.shared, &self.prefix);
        let mut count = 0;
        for _ in 0..pages {
            let Some(keys) = scan.next().await? else {
                break;
            };
            count += keys
                .iter()
                .filter(|key| self.is_one_of(key, &is_ours))
                .count() as u64;
        }
        Ok(count)
    }

    fn is_one_of(&self, key: &[u8], is_ours: impl Fn(&str) -> bool) -> bool {
        let name = std::str::from_utf8(key)
            .ok()
            .and_then(|key| key.strip_prefix(&self.prefix));
        name.is_some_and(is_ours)
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    async fn done(&self, operation: Operation, pipeline: &Pipeline) -> Result<(), RedisFault> {
        let shared = &self.pool.shared;
        let fault = match shared.send(operation, pipeline).await?.first() {
            Some(Value::Okay | Value::Int(_)) => return Ok(()),
            Some(Value::ServerError(error)) => RedisFault::from(&error.clone().into()),
            _ => RedisFault::unusable("word of success"),
        };
        shared.refused(&fault);
        Err(fault)
    }
}
