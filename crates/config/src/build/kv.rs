//! The sections about KV events and what is learnt from them.

use std::{num::NonZeroUsize, time::Duration};

use super::problem_at;
use crate::{
    BlockHashKind, KvCacheIndex, KvEvents, Offloading, Prediction, PrefixEventSource, PrefixHashKind, Worker,
    checked::Checked, problem::Draft,
};

pub(super) fn kv_events(section: &Checked) -> KvEvents {
    let prediction = section.key("prediction");
    KvEvents {
        enabled: section.key("enabled").bool(),
        memory_budget: section.key("memory_budget").size(),
        block_hash: match section.key("block_hash").word() {
            Some("fnv1a") => BlockHashKind::Fnv1a,
            _ => BlockHashKind::Xxh3,
        },
        block_hash_seed: section.key("block_hash_seed").int(),
        default_port: u16::try_from(section.key("default_port").int()).unwrap_or(u16::MAX),
        topic_filter: section.key("topic_filter").text().unwrap_or_default().to_owned(),
        replay: section.key("replay").bool(),
        max_message: section.key("max_message").size_in_memory(),
        queue_batches: usize::try_from(section.key("queue_batches").int()).unwrap_or(usize::MAX),
        max_events_per_second: section.key("max_events_per_second").int(),
        stale_after: section.key("stale_after").duration(),
        prediction: Prediction {
            ttl: prediction.key("ttl").duration(),
            max_blocks: prediction.key("max_blocks").int(),
            prune_target_ratio: prediction.key("prune_target_ratio").float(),
        },
    }
}

/// Entries whose problem is filed are left out.
pub(super) fn kv_cache_index(section: &Checked, workers: &[Worker], problems: &mut Vec<Draft>) -> KvCacheIndex {
    let offloading = section.key("storage_offloading");
    let sources = section.key("event_sources").items().iter().enumerate();
    KvCacheIndex {
        enabled: section.key("enabled").bool(),
        max_entries: usize::try_from(section.key("max_entries").int())
            .ok()
            .and_then(NonZeroUsize::new)
            .unwrap_or(NonZeroUsize::MAX),
        entry_ttl: Duration::from_secs(section.key("entry_ttl_seconds").int()),
        offloading: if offloading.key("enabled").bool() {
            Offloading::On { evicted_too: offloading.key("treat_eviction_as_offload").bool() }
        } else {
            Offloading::Off
        },
        event_sources: sources.filter_map(|(at, entry)| event_source(at, entry, workers, problems)).collect(),
    }
}

fn event_source(
    at: usize,
    entry: &Checked,
    workers: &[Worker],
    problems: &mut Vec<Draft>,
) -> Option<PrefixEventSource> {
    let path = |key: &str| format!("kv_cache_index.event_sources[{at}].{key}");
    let mut missing = |key: &str, expected: String| {
        let draft = Draft::new(path(key), "missing").expected(expected);
        problems.push(problem_at(draft, entry.key(key), entry));
    };
    let names = || workers.iter().map(|worker| worker.name.as_str()).collect::<Vec<_>>().join(", ");
    let (backend, endpoint) = (entry.key("backend_name"), entry.key("endpoint"));
    if backend.text().is_none() && !backend.failed {
        missing("backend_name", format!("the name of a worker: {}", names()));
    }
    if endpoint.text().is_none() && !endpoint.failed {
        missing("endpoint", "a URL such as http://10.0.0.1:8000/v1/kv_events".to_owned());
    }
    let (backend_name, endpoint) = (backend.text()?.to_owned(), endpoint.text()?.to_owned());
    if workers.iter().all(|worker| worker.name != backend_name) {
        let draft = Draft::new(path("backend_name"), format!("no worker is called `{backend_name}`"));
        let nearest = crate::nearest::nearest(&backend_name, workers.iter().map(|worker| worker.name.as_str()));
        let draft = draft.expected(format!("the name of a worker: {}", names())).nearest(nearest);
        problems.push(problem_at(draft.value(backend_name.into()), backend, entry));
        return None;
    }
    Some(PrefixEventSource {
        backend_name,
        endpoint,
        reconnect_interval: Duration::from_millis(entry.key("reconnect_interval_ms").int()),
        prefix_hash_kind: match entry.key("prefix_hash_kind").word() {
            Some("sequence_hash") => PrefixHashKind::SequenceHash,
            _ => PrefixHashKind::PrefixKey,
        },
    })
}
