//! Checks whether the server is up, and whether it came back.

use std::{sync::Arc, time::Duration};

use redis::{Pipeline, Value};
use resilience::{Backoff, jittered};
use tokio::time::{sleep, timeout};

use crate::{
    Operation, RedisFault,
    connection::{MOST_ANSWER, RedisDialer},
    pool::PoolShared,
};

/// Wait before the first check of a server that went down.
const FIRST: Duration = Duration::from_millis(250);
/// Maximum wait between two checks, jitter included; together with the duration of a check, a
/// server that came back is noticed within half a minute.
const LONGEST: Duration = Duration::from_secs(20);
/// Maximum share of jitter, so that routers that lost one server together do not return together.
const JITTER: f64 = 0.1;
/// A server that was up this long counts as stable: the waits begin with the first one again.
const STABLE: Duration = Duration::from_secs(30);

/// Runs for ever; its owner aborts it.
pub(crate) async fn watch(shared: Arc<PoolShared>) {
    let mut backoff = backoff();
    let mut silent = false;
    loop {
        let mut lasted = Duration::ZERO;
        match check_server(&shared).await {
            Ok(()) => {
                shared.state.mark_up();
                silent = false;
                tracing::info!(server = shared.server, "redis answers");
                lasted = watch_until_down(&shared).await;
            }
            Err(fault) => {
                shared.counters.fault(fault.kind);
                // Logged once per outage; the code that met the loss has reported it.
                if !silent {
                    tracing::warn!(server = shared.server, %fault, "redis does not answer: looking for it again and again");
                    silent = true;
                }
            }
        }
        sleep(pause_after(&mut backoff, lasted, runtime::chance())).await;
    }
}

/// Returns the waits between the checks of a server that is down.
fn backoff() -> Backoff {
    Backoff::new(FIRST, LONGEST).reset_after(STABLE)
}

/// Returns the wait after a server that was up for `lasted`. `chance`: a random number from 0 to 1.
fn pause_after(backoff: &mut Backoff, lasted: Duration, chance: f64) -> Duration {
    jittered(backoff.after(lasted), JITTER, chance).min(LONGEST)
}

/// Checks the server over a connection of its own: pending commands may use up those of the pool.
async fn check_server(shared: &PoolShared) -> Result<(), RedisFault> {
    let dial: &RedisDialer = shared.connections.manager();
    let mut connection = dial.open().await?;
    let limit = shared.command_timeout;
    match timeout(limit, connection.send(&ping(), MOST_ANSWER)).await {
        Err(_) => return Err(RedisFault::timeout("answer", limit)),
        Ok(Err(fault)) => return Err(fault),
        Ok(Ok(answers)) if is_pong(&answers) => {}
        Ok(Ok(answers)) => return Err(unready(&answers)),
    }
    // Only a clear answer counts: the account may lack the right to ask.
    match timeout(limit, connection.send(&cluster_info(), MOST_ANSWER)).await {
        Ok(Ok(answers)) if is_cluster(&answers) => Err(RedisFault::cluster()),
        _ => Ok(()),
    }
}

/// Checks periodically until the server is down, and returns the minimum time that it was up.
async fn watch_until_down(shared: &PoolShared) -> Duration {
    let mut lasted = Duration::ZERO;
    while timeout(shared.ping_interval, shared.state.wait_until(false))
        .await
        .is_err()
    {
        lasted += shared.ping_interval;
        // The pool acts on a fault when it occurs.
        let _ = shared.send(Operation::Get, &ping()).await;
    }
    lasted
}

fn ping() -> Pipeline {
    let mut pipeline = Pipeline::new();
    pipeline.ignore_errors().cmd("PING");
    pipeline
}

fn cluster_info() -> Pipeline {
    let mut pipeline = Pipeline::new();
    pipeline.ignore_errors().cmd("INFO").arg("cluster");
    pipeline
}

/// Returns whether the server is a node of a cluster.
fn is_cluster(answers: &[Value]) -> bool {
    let text = match answers {
        [Value::BulkString(text)] => String::from_utf8_lossy(text),
        [Value::VerbatimString { text, .. }] => text.as_str().into(),
        _ => return false,
    };
    text.lines()
        .any(|line| line.trim_end() == "cluster_enabled:1")
}

fn is_pong(answers: &[Value]) -> bool {
    matches!(answers, [Value::SimpleString(pong)] if pong == "PONG")
}

/// Returns the fault for a refused check: a server that loads its data, or requires a password,
/// answers too.
fn unready(answers: &[Value]) -> RedisFault {
    match answers {
        [Value::ServerError(error)] => RedisFault::from(&error.clone().into()),
        _ => RedisFault::unusable("PONG"),
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("CK37")]
    fn in_a_long_outage_the_server_is_checked_at_least_every_half_minute() {
        // A check ends after the default times for a connection and two commands.
        let longest_check = Duration::from_secs(3 + 1 + 1);
        for chance in [0.0, 0.5, 1.0] {
            let mut backoff = backoff();
            let pauses: Vec<_> = (0..100)
                .map(|_| pause_after(&mut backoff, Duration::ZERO, chance))
                .collect();
            assert!(pauses[0] < Duration::from_secs(1), "{pauses:?}");
            for pause in &pauses {
                assert!(
                    *pause + longest_check <= Duration::from_secs(30),
                    "{pause:?}"
                );
            }
            assert_eq!(pauses[99], LONGEST, "and not without a pause");
            // A server that was up for long is looked for soon again.
            let again = pause_after(&mut backoff, STABLE, chance);
            assert!(again < Duration::from_secs(1), "{again:?}");
        }
    }
}
