//! A Redis that stops to answer: the lookups that wait for it, each as long as a command may take.

use std::{error::Error, sync::Arc, time::Duration};

use net::Clock;
use prometheus_client::registry::Registry;
use redis_store::RedisPool;
use response_cache::{CacheKey, CacheLookup, CacheScope, ResponseCache};
use test_programs::Requirement;
use tokio::runtime::Runtime;

use crate::{figures::BoundedFigure, redis_server::RedisServer, settings};

/// Connections to Redis, as usual.
const POOL_SIZE: u32 = 8;
/// The usual time limit of a command, and a longer one of a lookup, so that only the first counts.
const COMMAND: Duration = Duration::from_secs(1);
const BUDGET: Duration = Duration::from_secs(5);
/// A lookup that takes this long has waited for Redis, and not for a busy machine.
const WAITED: Duration = Duration::from_millis(500);
/// Time of the machine beside the time limit.
const SLACK: Duration = Duration::from_millis(100);
/// Tasks that look up at the same time, and lookups of each.
const TASKS: u32 = 50;
const LOOKUPS: u32 = 200;

/// Returns the figures.
///
/// # Errors
/// There is no redis-server.
pub(crate) fn figures() -> Result<Vec<BoundedFigure>, Box<dyn Error>> {
    if Requirement::RedisServer.is_missing() {
        return Err("CK81 is not measured: there is no redis-server; on Debian: apt-get install redis-server".into());
    }
    let server = RedisServer::start();
    let runtime = Runtime::new()?;
    let [during, after] = runtime.block_on(async {
        let cache = connected(&server).await?;
        server.pause();
        let during = lookups(&cache, TASKS).await?;
        // By now the missing answers have shown that it is away.
        tokio::time::sleep(COMMAND).await;
        let after = lookups(&cache, 1).await?;
        Ok::<_, Box<dyn Error>>([during, after])
    })?;
    server.resume();
    let waited = |times: &[Duration]| times.iter().filter(|took| **took > WAITED).count();
    let (all, later) = (waited(&during), waited(&after));
    let longest = during.iter().max().copied().unwrap_or_default();
    let figure = |what: String, measured, at_most, unit| BoundedFigure {
        contract: "CK81",
        what,
        measured,
        at_most,
        unit,
    };
    Ok(vec![
        figure(
            format!("lookups that wait for a silent Redis, of {}", during.len()),
            all as f64,
            f64::from(POOL_SIZE),
            "",
        ),
        figure(
            "the longest of them, with a command timeout of 1 s".to_owned(),
            longest.as_secs_f64() * 1e3,
            (COMMAND + SLACK).as_secs_f64() * 1e3,
            "ms",
        ),
        figure(
            format!("later lookups that wait, of {}", after.len()),
            later as f64,
            0.0,
            "",
        ),
    ])
}

/// A cache that uses this server.
async fn connected(server: &RedisServer) -> Result<Arc<ResponseCache>, Box<dyn Error>> {
    let keys = format!(
        "response_cache: {{enabled: true, backend: redis, lookup_budget: {}ms, redis: {{url: \"{}\", \
         pool_size: {POOL_SIZE}, command_timeout_ms: {}}}}}\n",
        BUDGET.as_millis(),
        server.url(),
        COMMAND.as_millis()
    );
    let settings = settings(&keys)?.response_cache;
    let clock = Clock::system();
    let redis = settings.redis.server.as_ref().ok_or("no server")?;
    let pool = Arc::new(RedisPool::start(redis, clock)?);
    let cache = ResponseCache::start(&settings, Some(pool), clock, &mut Registry::default())?;
    // An idle server answers within a moment.
    while cache.absent().contains(&"redis") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(cache)
}

/// The time of each lookup of this many tasks at the same time.
async fn lookups(cache: &Arc<ResponseCache>, tasks: u32) -> Result<Vec<Duration>, Box<dyn Error>> {
    let clock = Clock::system();
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let cache = Arc::clone(cache);
            tokio::spawn(async move {
                let mut times = Vec::new();
                for _ in 0..LOOKUPS {
                    let started = clock.now();
                    let found = cache
                        .get(&CacheKey::new(CacheScope::of("default", "m"), [7; 32]))
                        .await;
                    times.push(clock.now().since(started));
                    if !matches!(found, CacheLookup::NotFound) {
                        return Err("nothing is stored");
                    }
                }
                Ok(times)
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in running {
        all.extend(task.await??);
    }
    Ok(all)
}
