//! One connection to the server, from name resolution to its end.
//!
//! `net` opens the sockets instead of the client library, whose streams do not bound the length of
//! an answer.

use std::{path::Path, time::Duration};

use config::{RedisAddress, RedisSection};
use deadpool::managed::{Manager, Metrics, RecycleError, RecycleResult};
use net::{Address, Stream, TrustError, TrustRoots};
use redis::{
    AsyncConnectionConfig, Pipeline, RedisConnectionInfo, Value, aio::MultiplexedConnection,
};
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    RedisFault,
    read_limit::{LimitedStream, ReadAllowance},
    sentinels::Sentinels,
};

/// Default limit of an answer, bytes: ten times the answer for a prefix with the most backends.
pub(crate) const MOST_ANSWER: usize = 1 << 20;

/// Connection parameters. As deadpool's manager it opens connections and checks whether one is
/// still good.
#[derive(Debug)]
pub(crate) struct RedisDialer {
    server: RedisServer,
    trust: Option<TrustRoots>,
    info: RedisConnectionInfo,
    limit: Duration,
}

/// How the server is found.
#[derive(Debug)]
enum RedisServer {
    At(RedisAddress),
    /// The primary that sentinels name, anew for each connection.
    Primary(Sentinels),
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
        let server = match url.primary() {
            Some(name) => RedisServer::Primary(Sentinels::new(url.addresses(), name)),
            None => RedisServer::At(RedisAddress {
                host: url.host().to_owned(),
                port: url.port(),
            }),
        };
        Ok(Self {
            server,
            trust: settings
                .tls
                .then(|| trust_roots(settings.tls_ca.as_deref()))
                .transpose()?
                .map(|trust| trust.without_http()),
            info,
            limit: settings.connect_timeout,
        })
    }

    /// Returns whether another server may become the primary.
    pub(crate) fn follows_sentinels(&self) -> bool {
        matches!(self.server, RedisServer::Primary(_))
    }

    /// Finds the server, resolves, connects, encrypts and greets, within one time limit for all
    /// steps.
    pub(crate) async fn open(&self) -> Result<RedisConnection, RedisFault> {
        let opening = async {
            match &self.server {
                RedisServer::At(address) => self.connect(address, &self.info).await,
                RedisServer::Primary(sentinels) => sentinels.connect(self).await,
            }
        };
        timeout(self.limit, opening)
            .await
            .unwrap_or_else(|_| Err(RedisFault::timeout("connection", self.limit)))
    }

    /// Opens a connection to a server as the configured user.
    pub(crate) async fn connect_as_user(
        &self,
        address: &RedisAddress,
    ) -> Result<RedisConnection, RedisFault> {
        self.connect(address, &self.info).await
    }

    /// Opens a connection to a sentinel, which has other users and no databases.
    pub(crate) async fn connect_to_sentinel(
        &self,
        address: &RedisAddress,
    ) -> Result<RedisConnection, RedisFault> {
        let info = RedisConnectionInfo::default().set_skip_set_lib_name();
        self.connect(address, &info).await
    }

    async fn connect(
        &self,
        address: &RedisAddress,
        info: &RedisConnectionInfo,
    ) -> Result<RedisConnection, RedisFault> {
        let RedisAddress { host, port } = address;
        let (host, port) = (host.clone(), *port);
        let stream = net::connect(&Address::Tcp { host, port }, self.limit)
            .await
            .map_err(|it| RedisFault::unreachable(&it))?;
        let stream = match &self.trust {
            None => stream,
            Some(trust) => trust
                .encrypt(stream, &address.host)
                .await
                .map_err(|it| RedisFault::handshake(&address.host, &it))?,
        };
        self.greet(stream, info).await
    }

    async fn greet(
        &self,
        stream: Stream,
        info: &RedisConnectionInfo,
    ) -> Result<RedisConnection, RedisFault> {
        let allowance = ReadAllowance::new(MOST_ANSWER);
        let stream = LimitedStream::new(stream, allowance.clone());
        // The caller sets the time limit.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let made = MultiplexedConnection::new_with_config(info, stream, config).await;
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
