//! Name cache with resolvers that answer, fail and hang.

use std::sync::{
    atomic::{AtomicUsize, Ordering},
    mpsc,
};

use contract_id::contract;

use super::*;
use crate::LocalFault;

fn ip(last: u8) -> IpAddr {
    [127, 0, 0, last].into()
}

/// A cache whose resolver gives scripted answers, and the number of its queries.
fn cache(
    lookup: impl Fn(&str, usize) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
) -> (NameCache, Arc<AtomicUsize>) {
    let lookups = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lookups);
    let lookup: LookupFn = Arc::new(move |name| lookup(name, count.fetch_add(1, Ordering::SeqCst)));
    (NameCache::new(lookup, Clock::system()), lookups)
}

/// Makes the cached answer of a name older.
fn age(cache: &NameCache, name: &str, by: Duration) {
    let mut names = cache.names.lock();
    let known = names.get_mut(name).unwrap();
    if let Some((at, _)) = &mut known.answer {
        *at = Moment::at(
            at.since_start()
                .checked_sub(by)
                .expect("a clock that runs for long enough"),
        );
    }
}

/// Uses a clock whose process started long ago.
fn long_running(mut cache: NameCache) -> NameCache {
    cache.clock = Clock::ahead_by(Duration::from_secs(3600));
    cache
}

async fn until_lookups(cache: &NameCache, lookups: &AtomicUsize, times: usize) {
    while lookups.load(Ordering::SeqCst) < times
        || cache
            .names
            .lock()
            .values()
            .any(|known| known.pending.is_some())
    {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
#[contract("F30")]
async fn concurrent_lookups_of_a_name_share_one_query() {
    let (cache, lookups) = cache(|_, _| {
        std::thread::sleep(Duration::from_millis(50));
        Ok(vec![ip(1), ip(2)])
    });
    let all = futures(20, |_| cache.resolve("engine"));
    for answer in all.await {
        assert_eq!(*answer.unwrap(), [ip(1), ip(2)]);
    }
    cache.resolve("engine").await.unwrap();
    assert_eq!(lookups.load(Ordering::SeqCst), 1);
}

#[tokio::test]
#[contract("F30")]
async fn cached_addresses_are_used_until_a_failing_resolver_answers_again() {
    let (cache, lookups) = cache(|_, number| match number {
        0 => Ok(vec![ip(1)]),
        1 => Err(io::Error::other("no server answers")),
        _ => Ok(vec![ip(2)]),
    });
    let cache = long_running(cache);
    assert_eq!(*cache.resolve("engine").await.unwrap(), [ip(1)]);
    age(&cache, "engine", REFRESH);
    // The failing query delays no caller.
    assert_eq!(*cache.resolve("engine").await.unwrap(), [ip(1)]);
    until_lookups(&cache, &lookups, 2).await;
    assert_eq!(*cache.resolve("engine").await.unwrap(), [ip(1)]);
    cache.names.lock().get_mut("engine").unwrap().failure = None;
    assert_eq!(
        *cache.resolve("engine").await.unwrap(),
        [ip(1)],
        "the query runs in the background"
    );
    until_lookups(&cache, &lookups, 3).await;
    assert_eq!(*cache.resolve("engine").await.unwrap(), [ip(2)]);
}

#[tokio::test]
#[contract("F30")]
async fn unreachable_addresses_are_queried_again_early() {
    let (cache, lookups) = cache(|_, number| Ok(vec![ip(1 + u8::try_from(number).unwrap())]));
    let cache = long_running(cache);
    cache.resolve("engine").await.unwrap();
    cache.mark_stale("engine");
    cache.resolve("engine").await.unwrap();
    assert_eq!(
        lookups.load(Ordering::SeqCst),
        1,
        "the name was just queried"
    );
    age(&cache, "engine", PAUSE);
    cache.mark_stale("engine");
    assert_eq!(
        *cache.resolve("engine").await.unwrap(),
        [ip(1)],
        "no caller waits for the answer"
    );
    until_lookups(&cache, &lookups, 2).await;
    assert_eq!(*cache.resolve("engine").await.unwrap(), [ip(2)]);
}

#[tokio::test]
#[contract("F30")]
async fn after_the_grace_time_an_unresolvable_name_is_a_local_fault() {
    let (cache, _) = cache(|_, number| {
        if number == 0 {
            Ok(vec![ip(1)])
        } else {
            Err(io::Error::other("no"))
        }
    });
    let cache = long_running(cache);
    cache.resolve("engine").await.unwrap();
    age(&cache, "engine", REFRESH + GRACE);
    let error = cache.resolve("engine").await.unwrap_err();
    assert_eq!(LocalFault::of(&error), Some(LocalFault::Resolver));
    assert!(
        error
            .to_string()
            .starts_with("the name engine cannot be resolved (no)"),
        "{error}"
    );
}

#[tokio::test]
#[contract("F30")]
async fn a_name_without_addresses_is_a_cached_failure() {
    let (cache, lookups) = cache(|_, _| Ok(Vec::new()));
    for _ in 0..5 {
        assert!(
            cache
                .resolve("engine")
                .await
                .unwrap_err()
                .to_string()
                .contains("has no address")
        );
    }
    assert_eq!(lookups.load(Ordering::SeqCst), 1);
}

#[tokio::test]
#[contract("F30")]
async fn a_hanging_resolver_uses_few_threads_and_delays_no_cached_name() {
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let (cache, lookups) = cache(move |name, _| {
        if name != "known" {
            let _ = blocked.lock().recv();
        }
        Ok(vec![ip(1)])
    });
    let cache = long_running(cache);
    cache.resolve("known").await.unwrap();
    let waiting: Vec<_> = (0..40)
        .map(|number| {
            let cache = cache.clone();
            tokio::spawn(async move { cache.resolve(&format!("name-{}", number % 20)).await })
        })
        .collect();
    while cache.lookup_permits.available_permits() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(lookups.load(Ordering::SeqCst) <= 1 + MOST_LOOKUPS);
    age(&cache, "known", REFRESH + GRACE / 2);
    assert_eq!(*cache.resolve("known").await.unwrap(), [ip(1)]);
    // A caller that leaves ends no query: a client's connect timeout frees no thread.
    waiting[0].abort();
    drop(release);
    for answer in waiting.into_iter().skip(1) {
        answer.await.unwrap().unwrap();
    }
    // The cached one is queried again as well.
    until_lookups(&cache, &lookups, 22).await;
    assert_eq!(lookups.load(Ordering::SeqCst), 22, "each name once");
}

#[tokio::test]
async fn the_name_cache_is_bounded_and_keeps_names_in_use() {
    let (cache, lookups) = cache(|_, _| Ok(vec![ip(1)]));
    for number in 0..MOST_NAMES {
        let used = Moment::at(Duration::from_nanos(number as u64));
        let known = CachedName {
            answer: None,
            stale: false,
            failure: None,
            pending: None,
            used,
        };
        cache
            .names
            .lock()
            .insert(format!("old-{number}").into(), known);
    }
    cache.resolve("new").await.unwrap();
    assert_eq!(cache.names.lock().len(), MOST_NAMES);
    assert!(!cache.names.lock().contains_key("old-0"));
    cache.resolve("new").await.unwrap();
    assert_eq!(lookups.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn system_names_resolve_and_addresses_need_no_query() {
    assert!(
        resolve("localhost")
            .await
            .unwrap()
            .iter()
            .all(IpAddr::is_loopback)
    );
    assert_eq!(
        *resolve("10.1.2.3").await.unwrap(),
        [IpAddr::from([10, 1, 2, 3])]
    );
}

/// Awaits all of these at once.
async fn futures<T, F: Future<Output = T>>(count: usize, make: impl Fn(usize) -> F) -> Vec<T> {
    let mut running: Vec<_> = (0..count).map(|number| Box::pin(make(number))).collect();
    let mut done = Vec::new();
    std::future::poll_fn(|context| {
        running.retain_mut(|future| match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => {
                done.push(value);
                false
            }
            std::task::Poll::Pending => true,
        });
        if running.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    done
}
