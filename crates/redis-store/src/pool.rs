//! The connection pool that all stores share.

use std::{sync::Arc, time::Duration};

use config::RedisSection;
use deadpool::managed::{Object, Pool, PoolError, QueueMode};
use net::{Clock, TrustError};
use prometheus_client::registry::Registry;
use redis::{Pipeline, Value};
use supervision::supervise;
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    FallbackRegistration, FaultKind, RedisFault,
    connection::{MOST_ANSWER, RedisDialer},
    fallback::FallbackRegistry,
    monitor, sentinels,
    state::{Epoch, PoolState},
    telemetry::{PoolCounters, RedisTelemetry},
};

/// Operation on Redis, as distinguished in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A lookup.
    Get,
    /// A write.
    Set,
    /// A removal without a write.
    Delete,
}

impl Operation {
    /// All operations.
    pub const ALL: [Self; 3] = [Self::Get, Self::Set, Self::Delete];

    /// Returns the value of the label `operation` in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Delete => "delete",
        }
    }
}

/// Connections to one server, and whether it is up. Dropping the last handle closes them.
///
/// The server counts as down until the first successful check; after an outage it counts as down
/// until the monitor task reaches it again. No other task waits for a server that is down. Each
/// store limits its share of the pool with its own permits, so no store can starve another.
#[derive(Debug)]
pub struct RedisPool {
    pub(crate) shared: Arc<PoolShared>,
    monitor: JoinHandle<()>,
}

#[derive(Debug)]
pub(crate) struct PoolShared {
    pub(crate) connections: Pool<RedisDialer>,
    pub(crate) server: String,
    pub(crate) state: PoolState,
    pub(crate) fallbacks: FallbackRegistry,
    pub(crate) counters: PoolCounters,
    connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) ping_interval: Duration,
    clock: Clock,
}

impl RedisPool {
    /// Starts the monitor and returns at once. Call inside a tokio runtime.
    ///
    /// # Errors
    /// The connection has to be encrypted, and there are no root certificates.
    pub fn start(settings: &RedisSection, clock: Clock) -> Result<Self, TrustError> {
        let connections = Pool::builder(RedisDialer::new(settings)?)
            // Bound: a caller that needs one more waits, up to its own time limit.
            .max_size(settings.pool_size.get() as usize)
            .queue_mode(QueueMode::Lifo)
            .build()
            .expect("it has no time limits, which is all that would need a runtime");
        let shared = Arc::new(PoolShared {
            connections,
            server: settings.url.to_string(),
            state: PoolState::disconnected(),
            fallbacks: FallbackRegistry::default(),
            counters: PoolCounters::default(),
            connect_timeout: settings.connect_timeout,
            command_timeout: settings.command_timeout,
            ping_interval: settings.ping_interval,
            clock,
        });
        let monitor_shared = Arc::clone(&shared);
        // `shared` has the state of the server, and a check finds it anew after a panic.
        let monitor = runtime::spawn(supervise("redis_monitor", move || {
            monitor::watch(Arc::clone(&monitor_shared))
        }));
        Ok(Self { shared, monitor })
    }

    /// Registers the metric families of the pool: the owner of the pool calls it once, however many
    /// stores use it.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(RedisTelemetry(Arc::clone(&self.shared))));
        self.shared.counters.register(registry);
    }

    /// Returns whether the server is up, as far as is known.
    pub fn is_up(&self) -> bool {
        self.shared.state.up().is_some()
    }

    /// Registers a fallback that answers from memory while the server is down, for the handle's
    /// lifetime.
    pub fn register_fallback(&self) -> FallbackRegistration {
        FallbackRegistration::new(Arc::clone(&self.shared))
    }

    /// Returns whether memory answers in the place of the server.
    pub fn has_fallback(&self) -> bool {
        self.shared.fallbacks.is_any_active(self.is_up())
    }

    /// Returns the maximum number of connections.
    pub fn most_connections(&self) -> usize {
        self.shared.connections.status().max_size
    }

    /// Returns the number of connections in use, and of idle ones.
    pub fn connections(&self) -> (u64, u64) {
        let status = self.shared.connections.status();
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        (
            count(status.size.saturating_sub(status.available)),
            count(status.available),
        )
    }

    /// Returns the number of faults of a kind, since the start.
    pub fn faults(&self, kind: FaultKind) -> u64 {
        self.shared.counters.faults(kind)
    }
}

impl Drop for RedisPool {
    fn drop(&mut self) {
        self.monitor.abort();
        self.shared.connections.close();
    }
}

impl PoolShared {
    /// Sends commands and returns one answer per command; a refusal by the server is a
    /// [`Value::ServerError`]. Waits for a connection no longer than opening one and one answer may
    /// take, then for the answers; does not wait at all if the server is down.
    ///
    /// A fault is counted here, and an outage takes the server out of use.
    pub(crate) async fn send(
        &self,
        operation: Operation,
        pipeline: &Pipeline,
    ) -> Result<Vec<Value>, RedisFault> {
        self.send_limited(operation, pipeline, MOST_ANSWER).await
    }

    /// Sends commands as [`Self::send`] does, with a limit for all answers together, in bytes.
    pub(crate) async fn send_limited(
        &self,
        operation: Operation,
        pipeline: &Pipeline,
        most: usize,
    ) -> Result<Vec<Value>, RedisFault> {
        let Some(epoch) = self.state.up() else {
            return Err(RedisFault::unavailable());
        };
        let started = self.clock.now();
        let answers = self.send_once(pipeline, most).await;
        match &answers {
            Ok(_) => self
                .counters
                .took(operation, self.clock.now().since(started)),
            Err(fault) => self.failed(fault, epoch),
        }
        answers
    }

    async fn send_once(&self, pipeline: &Pipeline, most: usize) -> Result<Vec<Value>, RedisFault> {
        let command = self.command_timeout;
        // Opening a connection has a limit of its own.
        let limit = self.connect_timeout + command;
        let mut connection = match timeout(limit, self.connections.get()).await {
            // All connections are in use, which is no sign of an outage.
            Err(_) => {
                return Err(RedisFault {
                    outage: false,
                    ..RedisFault::timeout("free connection", limit)
                });
            }
            Ok(Err(PoolError::Backend(fault))) => return Err(fault),
            Ok(Err(_)) => return Err(RedisFault::unavailable()),
            Ok(Ok(connection)) => connection,
        };
        let fault = match timeout(command, connection.send(pipeline, most)).await {
            Ok(Ok(answers)) if !self.is_demoted(&answers) => return Ok(answers),
            Ok(Ok(_)) => RedisFault::demoted("replica"),
            Ok(Err(fault)) => fault,
            Err(_) => RedisFault::timeout("answer", command),
        };
        // Otherwise the next user of the connection could receive this answer.
        drop(Object::take(connection));
        Err(fault)
    }

    /// Returns whether the server is no longer the primary that sentinels named.
    fn is_demoted(&self, answers: &[Value]) -> bool {
        self.connections.manager().follows_sentinels() && sentinels::is_of_replica(answers)
    }

    /// Counts a fault that was found in an answer.
    pub(crate) fn refused(&self, fault: &RedisFault) {
        self.counters.fault(fault.kind);
        tracing::debug!(server = self.server, %fault, "redis refused");
    }

    fn failed(&self, fault: &RedisFault, epoch: Epoch) {
        self.counters.fault(fault.kind);
        if fault.outage && self.state.mark_down(epoch) {
            tracing::warn!(server = self.server, %fault, "redis is away: going on without it until it answers again");
            // Their server does not answer.
            self.connections.retain(|_, _| false);
        }
    }
}
