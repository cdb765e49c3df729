//! One connection to the server, from name resolution to its end.
//!
//! `net` opens the sockets instead of the client library, whose streams do not bound the length of
//! an answer.

use std::{path::Path, time::Duration};

use config::RedisSection;
use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use net::{Address, Stream, TrustError, TrustRoots};
use redis::{
    AsyncConnectionConfig, Pipeline, RedisConnectionInfo, Value, aio::MultiplexedConnection,
};
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    RedisFault,
    read_limit::{LimitedStream, ReadAllowance},
};

/// Default limit of an answer, bytes: ten times the answer for a prefix with the most backends.
pub(crate) const MOST_ANSWER: usize = 1 << 20;

/// Connection parameters. As deadpool's manager it opens connections and checks whether one is
/// still good.
#[derive(Debug)]
pub(crate) struct RedisDialer {
    address: Address,
    host: String,
    trust: Option<TrustRoots>,
    info: RedisConnectionInfo,
    limit: Duration,
}

/// An open connection. Dropping it closes it, even while an answer is pending.
#[derive(Debug)]
pub(crate) struct RedisConnection {
    redis: MultiplexedConnection,
    allowance: ReadAllowance,
    driver: JoinHandle<()>,
}

impl RedisDialer {
    pub(crate) fn new(settings: &RedisSection) -> Result<Self, TrustError> {
        let url = &settings.url;
        let mut info = RedisConnectionInfo::default()
            .set_db(i64::from(url.database()))
            .set_skip_set_lib_name();
        if let Some(user) = url.user() {
            info = info.set_username(user.expose());
        }
        if let Some(password) = url.password() {
            info = info.set_password(password.expose());
        }
        Ok(Self {
            address: Address::Tcp {
                host: url.host().to_owned(),
                port: url.port(),
            },
            host: url.host().to_owned(),
            trust: settings
                .tls
                .then(|| trust_roots(settings.tls_ca.as_deref()))
                .transpose()?
                .map(|trust| trust.without_http()),
            info,
            limit: settings.connect_timeout,
        })
    }

    /// Resolves, connects, encrypts and greets, within one time limit for all steps.
    pub(crate) async fn open(&self) -> Result<RedisConnection, RedisFault> {
        let opening = async {
            let stream = net::connect(&self.address, self.limit)
                .await
                .map_err(|it| RedisFault::unreachable(&it))?;
            let stream = match &self.trust {
                None => stream,
                Some(trust) => trust
                    .encrypt(stream, &self.host)
                    .await
                    .map_err(|it| RedisFault::handshake(&self.host, &it))?,
            };
            self.greet(stream).await
        };
        timeout(self.limit, opening)
            .await
            .unwrap_or_else(|_| Err(RedisFault::timeout("connection", self.limit)))
    }

    async fn greet(&self, stream: Stream) -> Result<RedisConnection, RedisFault> {
        let allowance = ReadAllowance::new(MOST_ANSWER);
        let stream = LimitedStream::new(stream, allowance.clone());
        // The caller sets the time limit.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let made = MultiplexedConnection::new_with_config(&self.info, stream, config).await;
        let (redis, driver) = made.map_err(|error| RedisFault {
            outage: true,
            ..RedisFault::from(&error)
        })?;
        Ok(RedisConnection {
            redis,
            allowance,
            driver: runtime::spawn(driver),
        })
    }
}

fn trust_roots(tls_ca: Option<&Path>) -> Result<TrustRoots, TrustError> {
    tls_ca.map_or_else(TrustRoots::system, TrustRoots::with_authorities_in)
}

impl Manager for RedisDialer {
    type Type = RedisConnection;
    type Error = RedisFault;

    async fn create(&self) -> Result<RedisConnection, RedisFault> {
        self.open().await
    }

    async fn recycle(
        &self,
        connection: &mut RedisConnection,
        _: &Metrics,
    ) -> RecycleResult<RedisFault> {
        if connection.driver.is_finished() {
            Err(RecycleError::message("the connection is over"))
        } else {
            Ok(())
        }
    }
}

impl RedisConnection {
    /// Returns one answer per command, of at most `most` bytes together; a refusal by the server is
    /// a [`Value::ServerError`]. A connection with unread answers must not be used again.
    pub(crate) async fn send(
        &mut self,
        pipeline: &Pipeline,
        most: usize,
    ) -> Result<Vec<Value>, RedisFault> {
        self.allowance.set(most);
        match pipeline.query_async(&mut self.redis).await {
            Ok(Value::Array(answers)) => Ok(answers),
            Ok(_) => Ok(Vec::new()),
            Err(_) if self.allowance.is_spent() => Err(RedisFault::too_long()),
            Err(error) => Err(RedisFault::from(&error)),
        }
    }
}

impl Drop for RedisConnection {
    fn drop(&mut self) {
        // Otherwise the driver continues to wait for the pending answer.
        self.driver.abort();
    }
}
