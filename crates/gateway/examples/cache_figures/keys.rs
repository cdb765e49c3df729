//! The costs of a request before a worker is chosen: keys, the ring, a cached reply in memory.

use std::{hint::black_box, sync::Arc};

use bytes::Bytes;
use dialect::{Anchor, RepeatabilityView};
use net::Clock;
use prometheus_client::registry::Registry;
use response_cache::{CacheEntry, CacheKey, CacheLookup, CacheScope, ResponseCache};
use tokio::runtime::Runtime;

use crate::{figures::BoundedFigure, settings, stopwatch::us_per_call};

const CALLS: u32 = 10_000;
const ENTRIES: u32 = 1_000;

pub(crate) fn figures() -> Result<Vec<BoundedFigure>, Box<dyn std::error::Error>> {
    let system = "You are a careful assistant. ".repeat(300);
    let prefix = us_per_call(CALLS, |_| {
        black_box(Anchor::System(black_box(system.as_str()).into()).key("a-model", 1024));
    });
    let mut figures = vec![bounded(
        "prefix key of a system prompt of 8 KB, its first 1024 bytes".to_owned(),
        prefix,
        10.0,
    )];
    for words in [8, 350] {
        let text = "why is that so? ".repeat(words);
        let body = format!(
            r#"{{"model":"a-model","temperature":0,"max_tokens":64,"messages":[{{"role":"user","content":"{text}"}}]}}"#
        );
        let key = us_per_call(CALLS, |_| {
            let repeated = RepeatabilityView::read(black_box(body.as_bytes()));
            black_box(repeated.map(|it| it.key("default", "/v1/chat/completions", &[])));
        });
        figures.push(bounded(
            format!(
                "cache key of a body of {} bytes, its reading included",
                body.len()
            ),
            key,
            5.0,
        ));
    }
    figures.push(bounded(
        format!("kept reply in memory found among {ENTRIES}"),
        hit()?,
        1.0,
    ));
    Ok(figures)
}

fn bounded(what: String, measured: f64, at_most: f64) -> BoundedFigure {
    BoundedFigure {
        contract: "CK79",
        what,
        measured,
        at_most,
        unit: "us",
    }
}

fn hit() -> Result<f64, Box<dyn std::error::Error>> {
    let settings = settings("response_cache: {enabled: true}\n")?.response_cache;
    let runtime = Runtime::new()?;
    let cache = runtime.block_on(async {
        ResponseCache::start(&settings, None, Clock::system(), &mut Registry::default())
    })?;
    let key = |n: u32| {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_le_bytes());
        CacheKey::new(CacheScope::of("default", "m"), bytes)
    };
    for n in 0..ENTRIES {
        let entry = CacheEntry {
            label: 1,
            stored_at: 0,
            body: Bytes::from(vec![b'x'; 4_096]),
        };
        cache.put(key(n), entry, cache.generation(), ());
    }
    let (cache, mut found) = (Arc::clone(&cache), 0_u32);
    let took = runtime.block_on(async {
        us_per_call(CALLS, |n| {
            // It takes no wait: the first poll has the answer.
            let key = key(n % ENTRIES);
            let mut lookup = std::pin::pin!(cache.get(&key));
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            if let std::task::Poll::Ready(CacheLookup::Found(entry)) =
                lookup.as_mut().poll(&mut context)
            {
                found += u32::from(!black_box(entry).body.is_empty());
            }
        })
    });
    if found == 0 {
        Err("nothing was found".into())
    } else {
        Ok(took)
    }
}
