//! The entries of `workers`: their names, and defaults from other sections.

use std::{collections::BTreeMap, num::NonZeroU16};

use kv_blocks::{BlockSize, Role, Tier};

use super::{disaggregation, problem_at, tls, worker_events};
use crate::{
    CheckMethod, EngineKind, HealthCheck, MessagesMode, WorkerEntry, WorkerKvEvents, WorkerTls,
    checked_value::{CheckedValue, Value},
    problem::ProblemDraft,
};

/// Builds the workers; entries with a refused URL or name are left out, as their problem is
/// recorded already.
pub(super) fn workers(
    root: &mut CheckedValue,
    problems: &mut Vec<ProblemDraft>,
) -> Vec<WorkerEntry> {
    let default_block_size = root.key("models").key("defaults").key("block_size").clone();
    let default_topic = root.key("kv_events").key("topic_filter").clone();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut workers = Vec::new();
    for (at, entry) in root.key_mut("workers").items_mut().iter_mut().enumerate() {
        let Value::WorkerUrl { url, host_port } = entry.key("url").value.clone() else {
            continue;
        };
        if entry.key("name").failed {
            continue;
        }
        let name = entry.key("name").text().map_or(host_port, Into::into);
        if !is_name(&name) {
            let draft = ProblemDraft::new(
                format!("workers[{at}].name"),
                format!("cannot use `{name}` as a name"),
            );
            let draft = draft
                .expected("1 to 128 visible ASCII characters without `/`, `,` and `\"`")
                .value(name.into());
            problems.push(problem_at(draft, entry.key("name"), entry));
            continue;
        }
        if let Some(first) = seen.get(&name) {
            let message = format!("`{name}` is also the name of workers[{first}]");
            let draft = ProblemDraft::new(format!("workers[{at}].name"), message)
                .expected("a name of its own");
            problems.push(problem_at(
                draft.value(name.into()),
                entry.key("name"),
                entry,
            ));
            continue;
        }
        seen.insert(name.clone(), at);
        entry.key_mut("name").value = Value::Text(name.clone());
        inherit(entry.key_mut("block_size"), &default_block_size);
        inherit(entry.key_mut("kv_events").key_mut("topic"), &default_topic);
        let kv_events = worker_events::kv_events(entry.key("kv_events"), entry, at, problems);
        let role = disaggregation::role(entry, &url, at, problems);
        let tls = tls::worker(entry, &url, at, problems);
        workers.push(WorkerEntry {
            tls,
            ..worker(entry, name, url, role, kv_events)
        });
    }
    workers
}

/// Checks a name for use in headers, labels and paths.
fn is_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b',' | b'"'))
}

fn inherit(own: &mut CheckedValue, default: &CheckedValue) {
    if !own.is_set() {
        own.value = default.value.clone();
    }
}

fn worker(
    entry: &CheckedValue,
    name: String,
    url: String,
    role: Role,
    kv_events: WorkerKvEvents,
) -> WorkerEntry {
    let texts = |key: &str| {
        entry
            .key(key)
            .items()
            .iter()
            .filter_map(CheckedValue::text)
            .map(Into::into)
            .collect()
    };
    WorkerEntry {
        name,
        url,
        found: false,
        engine: entry.key("type").word().and_then(EngineKind::from_word),
        models: texts("models"),
        role,
        weight: entry.key("weight").float(),
        messages: match entry.key("messages").word() {
            Some("native") => Some(MessagesMode::Native),
            Some("translate") => Some(MessagesMode::Translate),
            _ => None,
        },
        api_key: match &entry.key("api_key").value {
            Value::Secret(secret) => Some(secret.clone()),
            _ => None,
        },
        block_size: entry
            .key("block_size")
            .int_or_word()
            .and_then(|tokens| BlockSize::new(tokens).ok()),
        dp_ranks: entry.key("dp_ranks").count_or_word(),
        bootstrap_port: port(entry.key("bootstrap_port")),
        tls: WorkerTls::default(),
        health_check: health_check(entry.key("health_check")),
        kv_events,
        allow_tiers: entry
            .key("allow_tiers")
            .items()
            .iter()
            .filter_map(tier)
            .collect(),
    }
}

fn port(key: &CheckedValue) -> Option<NonZeroU16> {
    key.int_or_word()
        .and_then(|port| u16::try_from(port).ok())
        .and_then(NonZeroU16::new)
}

fn tier(word: &CheckedValue) -> Option<Tier> {
    Tier::ALL
        .into_iter()
        .find(|tier| word.word() == Some(tier.as_str()))
}

fn health_check(section: &CheckedValue) -> HealthCheck {
    let statuses = |key: &str| {
        let statuses = section
            .key(key)
            .items()
            .iter()
            .filter_map(CheckedValue::int_or_word);
        statuses
            .filter_map(|status| u16::try_from(status).ok())
            .collect()
    };
    let fallbacks = section.key("fallback_endpoints");
    HealthCheck {
        endpoint: section.key("endpoint").text().map(Into::into),
        fallback_endpoints: (fallbacks.value != Value::Unset).then(|| {
            fallbacks
                .items()
                .iter()
                .filter_map(CheckedValue::text)
                .map(Into::into)
                .collect()
        }),
        method: section.key("method").word().map(|word| match word {
            "POST" => CheckMethod::Post,
            "HEAD" => CheckMethod::Head,
            _ => CheckMethod::Get,
        }),
        body: match &section.key("body").value {
            Value::Free(body) => Some(body.clone()),
            _ => None,
        },
        accept_status: (section.key("accept_status").value != Value::Unset)
            .then(|| statuses("accept_status")),
        warmup_status: statuses("warmup_status"),
        timeout: section.key("timeout").duration_if_set(),
    }
}
