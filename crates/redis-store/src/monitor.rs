//! Looks after the server: whether it is still there, and whether it is back.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use redis::{Pipeline, Value};
use supervision::Backoff;
use tokio::time::{sleep, timeout};

use crate::{
    Operation, RedisFault,
    connection::{MOST_ANSWER, RedisDialer},
    pool::PoolShared,
};

/// Before the first look for a server that went away.
const FIRST: Duration = Duration::from_millis(250);
/// Between two looks at most, chance included; with the time that a look itself takes a server that is back is noticed
/// within half a minute.
const LONGEST: Duration = Duration::from_secs(20);
/// What chance adds at most, so that routers that lost one server together do not return together.
const JITTER: f64 = 0.1;
/// Between two looks at a server that is there; one that was there this long was well.
const LOOK: Duration = Duration::from_secs(30);

/// Never ends: its owner aborts it.
pub(crate) async fn watch(shared: Arc<PoolShared>) {
    let mut backoff = Backoff::new(FIRST, LONGEST).reset_after(LOOK);
    let mut silent = false;
    loop {
        let mut lasted = Duration::ZERO;
        match knock(&shared).await {
            Ok(()) => {
                shared.state.mark_up();
                silent = false;
                tracing::info!(server = shared.server, "redis answers");
                lasted = well(&shared).await;
            }
            Err(fault) => {
                shared.counters.fault(fault.kind);
                // Once per absence; the loss itself was reported by whoever met it.
                if !silent {
                    tracing::warn!(server = shared.server, %fault, "redis does not answer: looking for it again and again");
                    silent = true;
                }
            }
        }
        sleep(
            backoff
                .after(lasted)
                .mul_f64(1.0 + JITTER * chance())
                .min(LONGEST),
        )
        .await;
    }
}

/// A connection of its own: those of the pool may be used up by what waits for the server.
async fn knock(shared: &PoolShared) -> Result<(), RedisFault> {
    let dial: &RedisDialer = shared.connections.manager();
    let mut connection = dial.open().await?;
    match timeout(shared.command_timeout, connection.ask(&ping(), MOST_ANSWER)).await {
        Err(_) => Err(RedisFault::timeout("answer", shared.command_timeout)),
        Ok(Err(fault)) => Err(fault),
        Ok(Ok(answers)) if is_pong(&answers) => Ok(()),
        Ok(Ok(answers)) => Err(unready(&answers)),
    }
}

/// Looks now and then until the server is away, and says how long it was there at least.
async fn well(shared: &PoolShared) -> Duration {
    let mut lasted = Duration::ZERO;
    while timeout(LOOK, shared.state.wait_until(false)).await.is_err() {
        lasted += LOOK;
        // A fault is acted on where it is found.
        let _ = shared.ask(Operation::Get, &ping()).await;
    }
    lasted
}

fn ping() -> Pipeline {
    let mut pipeline = Pipeline::new();
    pipeline.ignore_errors().cmd("PING");
    pipeline
}

fn is_pong(answers: &[Value]) -> bool {
    matches!(answers, [Value::SimpleString(pong)] if pong == "PONG")
}

/// A server that loads its data, or wants a password, answers too.
fn unready(answers: &[Value]) -> RedisFault {
    match answers {
        [Value::ServerError(error)] => RedisFault::from(&error.clone().into()),
        _ => RedisFault::unusable("PONG"),
    }
}

/// From 0 to 1.
fn chance() -> f64 {
    f64::from(u16::try_from(RandomState::new().hash_one(0_u8) & 0xffff).unwrap_or_default())
        / f64::from(u16::MAX)
}
