//! The connections that all stores share.

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
    monitor,
    state::{Epoch, PoolState},
    telemetry::{PoolCounters, RedisTelemetry},
};

/// What is asked of Redis, as metrics tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Something is looked up.
    Get,
    /// Something is written.
    Set,
    /// Something is removed, and nothing else.
    Delete,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Get, Self::Set, Self::Delete];

    /// The value of the label `operation` in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Delete => "delete",
        }
    }
}

/// Connections to one server, and whether it is there. Dropping the last handle closes them.
///
/// Away until it was first seen, and from a fault on that says so until a task of its own has seen it again: nobody else
/// waits for a server that is away. How much of the pool a store may use is the store's own matter: each has permits of its
/// own, so that none can starve another.
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
    clock: Clock,
}

impl RedisPool {
    /// Starts to look for the server and returns at once. Call inside a tokio runtime.
    ///
    /// # Errors
    /// The connection is to be encrypted, and there is nothing to check certificates with.
    pub fn start(settings: &RedisSection, clock: Clock) -> Result<Self, TrustError> {
        let connections = Pool::builder(RedisDialer::new(settings)?)
            // Bound: whoever needs one more waits, as long as its own limit says.
            .max_size(settings.pool_size.get() as usize)
            .queue_mode(QueueMode::Lifo)
            .build()
            .expect("it has no time limits, which is all that would need a runtime");
        let shared = Arc::new(PoolShared {
            connections,
            server: settings.url.to_string(),
            state: PoolState::away(),
            fallbacks: FallbackRegistry::default(),
            counters: PoolCounters::default(),
            connect_timeout: settings.connect_timeout,
            command_timeout: settings.command_timeout,
            clock,
        });
        let watched = Arc::clone(&shared);
        // Whether the server is there is in `shared`, and is found out anew after a panic.
        let monitor = tokio::spawn(supervise("redis_monitor", move || {
            monitor::watch(Arc::clone(&watched))
        }));
        Ok(Self { shared, monitor })
    }

    /// Registers the metric families of the pool: whoever made it does that once, whoever uses it.
    pub fn register(&self, registry: &mut Registry) {
        registry.register_collector(Box::new(RedisTelemetry(Arc::clone(&self.shared))));
        self.shared.counters.register(registry);
    }

    /// Whether the server is there, as far as is known.
    pub fn is_up(&self) -> bool {
        self.shared.state.up().is_some()
    }

    /// Says that memory goes on in the place of this server while it is away, as long as the handle lives.
    pub fn register_fallback(&self) -> FallbackRegistration {
        FallbackRegistration::new(Arc::clone(&self.shared))
    }

    /// Whether memory answers in the place of the server.
    pub fn has_fallback(&self) -> bool {
        self.shared.fallbacks.is_any_active(self.is_up())
    }

    /// Most connections.
    pub fn most_connections(&self) -> usize {
        self.shared.connections.status().max_size
    }

    /// Connections in use, and connections that wait for use.
    pub fn connections(&self) -> (u64, u64) {
        let status = self.shared.connections.status();
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        (
            count(status.size.saturating_sub(status.available)),
            count(status.available),
        )
    }

    /// Faults of this kind, ever.
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
    /// One answer per command, among them the server's refusals as [`Value::ServerError`]. Waits for a connection no
    /// longer than opening one and one answer may take, then for the answers; not at all where the server is away.
    ///
    /// A fault is counted here, and one that is an outage is acted on.
    pub(crate) async fn ask(
        &self,
        operation: Operation,
        pipeline: &Pipeline,
    ) -> Result<Vec<Value>, RedisFault> {
        self.ask_for(operation, pipeline, MOST_ANSWER).await
    }

    /// The same for answers of at most so many bytes together.
    pub(crate) async fn ask_for(
        &self,
        operation: Operation,
        pipeline: &Pipeline,
        most: usize,
    ) -> Result<Vec<Value>, RedisFault> {
        let Some(epoch) = self.state.up() else {
            return Err(RedisFault::away());
        };
        let started = self.clock.now();
        let answers = self.asked(pipeline, most).await;
        match &answers {
            Ok(_) => self
                .counters
                .took(operation, self.clock.now().since(started)),
            Err(fault) => self.failed(fault, epoch),
        }
        answers
    }

    async fn asked(&self, pipeline: &Pipeline, most: usize) -> Result<Vec<Value>, RedisFault> {
        let command = self.command_timeout;
        // Opening one has a limit of its own.
        let patience = self.connect_timeout + command;
        let mut connection = match timeout(patience, self.connections.get()).await {
            // All are in use, which says nothing against the server.
            Err(_) => {
                return Err(RedisFault {
                    outage: false,
                    ..RedisFault::timeout("free connection", patience)
                });
            }
            Ok(Err(PoolError::Backend(fault))) => return Err(fault),
            Ok(Err(_)) => return Err(RedisFault::away()),
            Ok(Ok(connection)) => connection,
        };
        let fault = match timeout(command, connection.ask(pipeline, most)).await {
            Ok(Ok(answers)) => return Ok(answers),
            Ok(Err(fault)) => fault,
            Err(_) => RedisFault::timeout("answer", command),
        };
        // What was asked may still be answered, to whoever would use the connection next.
        drop(Object::take(connection));
        Err(fault)
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
            // They lead to a server that does not answer.
            self.connections.retain(|_, _| false);
        }
    }
}
