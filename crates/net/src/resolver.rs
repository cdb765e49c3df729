//! Resolves names in the background of the connections that need them, and caches the answers.
//!
//! Queries go to the system's resolver (`/etc/hosts` and search domains count), which reports no
//! time to live: an answer is refreshed after [`REFRESH`], while connections use the cached one.
//! Where the resolver fails or hangs, the last addresses are used for [`GRACE`] more.
//!
//! **Invariant**: at most one query runs per name, at most [`MOST_LOOKUPS`] in all, and a caller
//! that leaves ends none of them. The result is only a list: the caller that connects checks each
//! address ([`crate::Destinations`]).

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, ToSocketAddrs},
    sync::{Arc, LazyLock},
    time::Duration,
};

use kv_blocks::Moment;
use parking_lot::Mutex;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::Clock;

/// Age at which an answer is refreshed.
pub const REFRESH: Duration = Duration::from_secs(30);
/// Time for which an answer is used beyond that, where there is no newer one.
pub const GRACE: Duration = Duration::from_secs(600);
/// Pause after a failed query.
const PAUSE: Duration = Duration::from_secs(1);
/// Limit of concurrent queries; each takes a thread for as long as the resolver takes.
const MOST_LOOKUPS: usize = 8;
/// Limit of cached names; one more replaces the least recently used one.
const MOST_NAMES: usize = 4096;

/// A name could not be resolved, and no cached address exists.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the name {name} cannot be resolved ({reason}): check the name, and the resolver of this machine"
)]
pub(crate) struct ResolveError {
    name: Arc<str>,
    reason: Arc<str>,
}

type Addresses = Arc<[IpAddr]>;
type ResolveResult = Result<Addresses, Arc<str>>;
/// The lookup function; it may block without limit.
type LookupFn = Arc<dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync>;

/// The cache of the system's resolver.
static SYSTEM: LazyLock<NameCache> =
    LazyLock::new(|| NameCache::new(Arc::new(by_system), Clock::system()));

/// Returns the addresses of `host`, from the cache or by a query.
pub(crate) async fn resolve(host: &str) -> io::Result<Addresses> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(Arc::new([address]));
    }
    SYSTEM.resolve(host).await
}

/// Returns the addresses of `host` that connections use now, without a query: none if it is no
/// address and was never resolved.
pub fn cached_addresses(host: &str) -> Addresses {
    match host.parse::<IpAddr>() {
        Ok(address) => Arc::new([address]),
        Err(_) => SYSTEM.cached(host),
    }
}

/// Marks the addresses of `host` as stale: none of them was reachable, so they may have changed.
pub(crate) fn mark_stale(host: &str) {
    if host.parse::<IpAddr>().is_err() {
        SYSTEM.mark_stale(host);
    }
}

fn by_system(name: &str) -> io::Result<Vec<IpAddr>> {
    let mut addresses = Vec::new();
    for address in (name, 0).to_socket_addrs()? {
        if !addresses.contains(&address.ip()) {
            addresses.push(address.ip());
        }
    }
    Ok(addresses)
}

/// Cache of names.
#[derive(Clone)]
struct NameCache {
    lookup: LookupFn,
    clock: Clock,
    names: Arc<Mutex<HashMap<Arc<str>, CachedName>>>,
    lookup_permits: Arc<Semaphore>,
}

/// Cache entry of one name.
struct CachedName {
    /// The last answer, and when it arrived.
    answer: Option<(Moment, Addresses)>,
    /// Whether a connect failed since: the name is queried again.
    stale: bool,
    /// Reason and time of the last failed query.
    failure: Option<(Moment, Arc<str>)>,
    /// The running query.
    pending: Option<watch::Receiver<Option<ResolveResult>>>,
    used: Moment,
}

impl CachedName {
    /// Returns the last answer if it is no older than `age`.
    fn answered_within(&self, age: Duration, now: Moment) -> Option<Addresses> {
        self.answer
            .as_ref()
            .filter(|(at, _)| now.since(*at) < age)
            .map(|(_, addresses)| Arc::clone(addresses))
    }

    fn failed_just_now(&self, now: Moment) -> Option<Arc<str>> {
        self.failure
            .as_ref()
            .filter(|(at, _)| now.since(*at) < PAUSE)
            .map(|(_, reason)| Arc::clone(reason))
    }
}

impl NameCache {
    fn new(lookup: LookupFn, clock: Clock) -> Self {
        Self {
            lookup,
            clock,
            names: Arc::default(),
            lookup_permits: Arc::new(Semaphore::new(MOST_LOOKUPS)),
        }
    }

    async fn resolve(&self, name: &str) -> io::Result<Addresses> {
        let mut pending = match self.cached_or_pending(name) {
            Ok(answer) => return answer.map_err(|reason| failed(name, reason)),
            Err(pending) => pending,
        };
        let answer = match pending.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone(),
            Err(_) => None,
        };
        answer
            .unwrap_or_else(|| Err("the question was given up".into()))
            .map_err(|reason| failed(name, reason))
    }

    /// Returns the cached answer, or the query to wait for.
    fn cached_or_pending(
        &self,
        name: &str,
    ) -> Result<ResolveResult, watch::Receiver<Option<ResolveResult>>> {
        let now = self.clock.now();
        let mut names = self.names.lock();
        if !names.contains_key(name) {
            evict_excess(&mut names);
            names.insert(
                name.into(),
                CachedName {
                    answer: None,
                    stale: false,
                    failure: None,
                    pending: None,
                    used: now,
                },
            );
        }
        let known = names.get_mut(name).expect("it was just put there");
        known.used = now;
        if let Some(addresses) = known.answered_within(REFRESH, now).filter(|_| !known.stale) {
            return Ok(Ok(addresses));
        }
        let failure = known.failed_just_now(now);
        if known.pending.is_none() && failure.is_none() {
            known.pending = Some(self.start_lookup(name.into()));
        }
        match (
            known.answered_within(REFRESH + GRACE, now),
            failure,
            &known.pending,
        ) {
            (Some(addresses), ..) => Ok(Ok(addresses)),
            (None, _, Some(pending)) => Err(pending.clone()),
            (None, Some(reason), None) => Ok(Err(reason)),
            (None, None, None) => Ok(Err("it is not asked for".into())),
        }
    }

    fn cached(&self, name: &str) -> Addresses {
        let now = self.clock.now();
        let names = self.names.lock();
        let known = names.get(name);
        known
            .and_then(|known| known.answered_within(REFRESH + GRACE, now))
            .unwrap_or_default()
    }

    /// Marks a name for a new query at its next use, unless its answer is fresh.
    fn mark_stale(&self, name: &str) {
        let now = self.clock.now();
        if let Some(known) = self.names.lock().get_mut(name) {
            known.stale = known.answered_within(PAUSE, now).is_none();
        }
    }

    /// Starts a query on its own thread, as soon as a permit is free.
    fn start_lookup(&self, name: Arc<str>) -> watch::Receiver<Option<ResolveResult>> {
        let (sender, pending) = watch::channel(None);
        let cache = self.clone();
        runtime::spawn(async move {
            let permit = Arc::clone(&cache.lookup_permits).acquire_owned().await;
            let answer = match cache.look_up(&name, permit).await {
                Ok(addresses) if !addresses.is_empty() => Ok(addresses.into()),
                Ok(_) => Err("it has no address".into()),
                Err(error) => Err(error.to_string().into()),
            };
            cache.take(&name, &answer);
            sender.send_replace(Some(answer));
        });
        pending
    }

    /// Queries on its own thread, which holds `permit`: a hanging resolver blocks no thread of the
    /// runtime, and does not delay the end of the process.
    async fn look_up(
        &self,
        name: &Arc<str>,
        permit: Result<OwnedSemaphorePermit, AcquireError>,
    ) -> io::Result<Vec<IpAddr>> {
        let (lookup, name) = (Arc::clone(&self.lookup), Arc::clone(name));
        let (done, found) = oneshot::channel();
        runtime::spawn_thread("resolver", move || {
            let found = lookup(&name);
            drop(permit);
            // No receiver is left where the runtime has ended.
            drop(done.send(found));
        })?;
        found
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the resolver's thread ended with a panic")))
    }

    /// Stores an answer.
    fn take(&self, name: &str, answer: &ResolveResult) {
        let now = self.clock.now();
        let mut names = self.names.lock();
        let Some(known) = names.get_mut(name) else {
            return;
        };
        known.pending = None;
        match answer {
            Ok(addresses) => {
                (known.answer, known.stale, known.failure) =
                    (Some((now, Arc::clone(addresses))), false, None);
            }
            Err(reason) => {
                if known.failure.is_none() {
                    let age = known.answer.as_ref().map(|(at, _)| now.since(*at));
                    tracing::warn!(name, %reason, ?age, "a name cannot be resolved: its last addresses are used");
                }
                known.failure = Some((now, Arc::clone(reason)));
            }
        }
    }
}

/// Evicts a name if the cache is full. A name with a running query stays.
fn evict_excess(names: &mut HashMap<Arc<str>, CachedName>) {
    if names.len() < MOST_NAMES {
        return;
    }
    let idle = names.iter().filter(|(_, known)| known.pending.is_none());
    if let Some(oldest) = idle
        .min_by_key(|(_, known)| known.used)
        .map(|(name, _)| Arc::clone(name))
    {
        names.remove(&oldest);
    }
}

fn failed(name: &str, reason: Arc<str>) -> io::Error {
    io::Error::other(ResolveError {
        name: name.into(),
        reason,
    })
}

#[cfg(test)]
mod tests;
