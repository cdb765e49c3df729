//! Workers from outside the file, environment and flags: added by operators or found by discovery.

#[cfg(feature = "nats")]
mod shared;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use admin::{NamedWorker, WorkerRejection};
use config::{MoreWorker, Problem, Settings};
use kv_blocks::Moment;
use net::WorkerUrl;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[cfg(feature = "nats")]
pub(super) use self::shared::SharedEntry;

/// Most workers that operators may add, and most remembered names of removed ones.
const MOST: usize = 4096;
/// Origin given in problems of an operator's entry.
const ADMIN: &str = "POST /admin/workers";

/// Workers from operators and discovery.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct MemberTable {
    /// Added by operators, by name.
    #[serde(rename = "workers")]
    named: BTreeMap<String, MemberEntry>,
    /// Removed by operators although another source lists them.
    #[serde(default)]
    left_out: BTreeSet<String>,
    /// Discovered workers by source.
    #[serde(skip)]
    found: BTreeMap<String, Vec<MoreWorker>>,
    /// Names of workers that operators added and removed again.
    #[serde(skip)]
    removed: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct MemberEntry {
    entry: Map<String, Value>,
    #[serde(skip)]
    lease: Option<MemberLease>,
    /// Whether another source has a worker of that name.
    #[serde(default)]
    instead: bool,
    /// Whether the replicas share it: they count its lease, too.
    #[serde(skip)]
    shared: bool,
}

#[derive(Clone, Copy, Debug)]
struct MemberLease {
    /// End of the lease, in run time ([`net::RunTime`]); `None`: the replicas end it.
    until: Option<Moment>,
}

impl PartialEq for MemberLease {
    /// Always equal: a renewed lease is no change of the configuration.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl MemberTable {
    /// Returns entries for the list of workers: operators' first, then discovered ones. An
    /// operator's entry replaces one of the same name, and a worker removed by an operator stays
    /// out, whatever source lists it.
    pub(super) fn more_workers(&self) -> Vec<MoreWorker> {
        let named = self.named.values().map(|member| MoreWorker {
            origin: ADMIN.to_owned(),
            text: Value::Object(member.entry.clone()).to_string(),
        });
        let hidden = |name: &String| self.named.contains_key(name) || self.left_out.contains(name);
        let found = self
            .found
            .values()
            .flatten()
            .filter(|worker| !name_in(&worker.text).is_some_and(|it| hidden(&it)));
        named.chain(found.cloned()).collect()
    }

    /// Returns names that the workers of other sources must not have.
    pub(super) fn left_out(&self) -> Vec<String> {
        self.left_out
            .iter()
            .chain(self.named.keys())
            .cloned()
            .collect()
    }

    /// Adds an operator's worker; returns its name, and whether it replaced one of that name.
    pub(super) fn put(
        &mut self,
        worker: NamedWorker,
        replace: bool,
        in_force: &Settings,
        now: Moment,
    ) -> Result<(String, bool), WorkerRejection> {
        let NamedWorker {
            name,
            mut entry,
            lease_ttl,
        } = worker;
        let name = name.or_else(|| name_of(&entry)).ok_or_else(|| {
            let message = "the entry has no usable url, so the worker cannot be named";
            WorkerRejection::Problems(vec![Problem::bad_value("url", "", message)])
        })?;
        let known = in_force.workers.iter().any(|worker| worker.name == name);
        if known && !replace {
            return Err(WorkerRejection::Exists(name));
        }
        // The other worker is from the file or discovery: this entry replaces it while it exists.
        let instead = self.is_of_other_source(&name, in_force);
        self.left_out.remove(&name);
        if self.named.len() >= MOST && !self.named.contains_key(&name) {
            let message = format!(
                "{MOST} workers were added here already: take some out, or write them into the file"
            );
            return Err(WorkerRejection::Problems(vec![Problem::bad_value(
                "workers", "", &message,
            )]));
        }
        entry.insert("name".to_owned(), name.as_str().into());
        self.removed.remove(&name);
        let lease = lease_ttl.map(|ttl: Duration| MemberLease {
            until: Some(now + ttl),
        });
        self.named.insert(
            name.clone(),
            MemberEntry {
                entry,
                lease,
                instead,
                shared: false,
            },
        );
        Ok((name, known))
    }

    /// Removes a worker; `false`: there never was one of that name.
    pub(super) fn remove(&mut self, name: &str, in_force: &Settings) -> bool {
        if let Some(member) = self.named.remove(name) {
            if member.instead && self.left_out.len() < MOST {
                self.left_out.insert(name.to_owned());
            }
            if self.removed.len() < MOST {
                self.removed.insert(name.to_owned());
            }
            return true;
        }
        if in_force.workers.iter().any(|worker| worker.name == name) && self.left_out.len() < MOST {
            self.left_out.insert(name.to_owned());
            return true;
        }
        self.left_out.contains(name) || self.removed.contains(name)
    }

    /// Returns whether the file or discovery has a worker of this name, also one that an operator
    /// replaced or removed.
    pub(super) fn is_of_other_source(&self, name: &str, in_force: &Settings) -> bool {
        match self.named.get(name) {
            Some(member) => member.instead,
            None => {
                self.left_out.contains(name)
                    || in_force.workers.iter().any(|worker| worker.name == name)
            }
        }
    }

    /// Sets the workers of a discovery source. Workers added by operators take precedence.
    pub(super) fn found(&mut self, source: &str, workers: Vec<MoreWorker>) {
        self.found.insert(source.to_owned(), workers);
    }

    /// Takes the discovered workers of `other`.
    pub(super) fn copy_discovered(&mut self, other: &Self) {
        self.found.clone_from(&other.found);
    }

    /// Takes the shared workers of `other`: they are not part of one router's configuration.
    pub(super) fn copy_shared(&mut self, other: &Self) {
        let shared = |member: &MemberEntry| member.shared;
        self.named.retain(|_, member| !shared(member));
        let others = other.named.iter().filter(|(_, member)| shared(member));
        self.named
            .extend(others.map(|(name, member)| (name.clone(), member.clone())));
    }

    /// Takes the leases of `other`: they were renewed since.
    pub(super) fn copy_leases(&mut self, other: &Self) {
        for (name, member) in &mut self.named {
            if let Some(now) = other.named.get(name) {
                member.lease = now.lease;
            }
        }
    }

    /// Extends expired leases to `until`.
    pub(super) fn extend_leases(&mut self, now: Moment, until: Moment) {
        for member in self.named.values_mut().filter(|member| member.is_over(now)) {
            member.lease = Some(MemberLease { until: Some(until) });
        }
    }

    /// Returns whether a lease has expired.
    pub(super) fn any_over(&self, now: Moment) -> bool {
        self.named.values().any(|member| member.is_over(now))
    }

    /// Removes workers whose lease has expired.
    pub(super) fn end_leases(&mut self, now: Moment) {
        let over: Vec<String> = self
            .named
            .iter()
            .filter(|(_, member)| member.is_over(now))
            .map(|(name, _)| name.clone())
            .collect();
        for name in over {
            tracing::info!(worker = name, "its lease was not renewed: taken out");
            self.named.remove(&name);
            if self.removed.len() < MOST {
                self.removed.insert(name);
            }
        }
    }

    /// Returns the part that survives a restart: workers with a lease register again.
    pub(super) fn lasting(&self) -> Self {
        let lasting = self
            .named
            .iter()
            .filter(|(_, member)| member.lease.is_none());
        Self {
            named: lasting
                .map(|(name, member)| (name.clone(), member.clone()))
                .collect(),
            left_out: self.left_out.clone(),
            ..Self::default()
        }
    }
}

impl MemberEntry {
    fn is_over(&self, now: Moment) -> bool {
        let until = self.lease.and_then(|lease| lease.until);
        until.is_some_and(|until| until <= now)
    }
}

/// Returns the name in the text of a discovered entry.
pub(super) fn name_in(text: &str) -> Option<String> {
    match serde_json::from_str(text).ok()? {
        Value::Object(entry) => name_of(&entry),
        Value::String(short) => match short
            .find("://")
            .and_then(|scheme| short[..scheme].split_once('='))
        {
            Some((name, _)) => Some(name.to_owned()),
            None => Some(short.parse::<WorkerUrl>().ok()?.worker_name()),
        },
        _ => None,
    }
}

/// Returns the name in a worker's entry, or the name that follows from its URL.
pub(super) fn name_of(entry: &Map<String, Value>) -> Option<String> {
    if let Some(name) = entry.get("name").and_then(Value::as_str) {
        return Some(name.to_owned());
    }
    let url: WorkerUrl = entry.get("url")?.as_str()?.parse().ok()?;
    Some(url.worker_name())
}
