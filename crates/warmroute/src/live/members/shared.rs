//! Workers of operators that the replicas share.

use config::Settings;
use registrations::Refusal;
use serde_json::{Map, Value};

use super::{MOST, MemberEntry, MemberLease, MemberTable};

/// A worker that is registered with the replicas.
#[derive(Clone, Copy, Debug)]
pub(in crate::live) struct SharedEntry<'a> {
    pub(in crate::live) name: &'a str,
    pub(in crate::live) entry: &'a Map<String, Value>,
    /// Whether it has a lease, which the replicas count.
    pub(in crate::live) leased: bool,
}

impl MemberTable {
    /// Marks a worker that was added here as shared; one that stands in for a worker of the file or
    /// of discovery is this router's alone.
    pub(in crate::live) fn share(&mut self, name: &str) {
        let member = self.named.get_mut(name);
        if let Some(member) = member.filter(|member| !member.instead) {
            member.shared = true;
            member.lease = member.lease.map(|_| MemberLease { until: None });
        }
    }

    /// Marks all workers as shared that can be; returns those without a lease.
    pub(in crate::live) fn share_all(&mut self) -> Vec<(String, Map<String, Value>)> {
        let names: Vec<String> = self.named.keys().cloned().collect();
        for name in &names {
            self.share(name);
        }
        let shared = self.named.iter().filter(|(_, member)| member.shared);
        shared
            .map(|(name, member)| (name.clone(), member.entry.clone()))
            .collect()
    }

    /// Returns the entry of a shared worker.
    pub(in crate::live) fn shared_entry(&self, name: &str) -> Option<&Map<String, Value>> {
        let member = self.named.get(name).filter(|member| member.shared);
        member.map(|member| &member.entry)
    }

    /// Adds or replaces a worker that another replica registered. A worker of this router's file or
    /// discovery keeps its name.
    pub(in crate::live) fn share_entry(
        &mut self,
        worker: SharedEntry<'_>,
        in_force: &Settings,
    ) -> Result<(), Refusal> {
        let SharedEntry {
            name,
            entry,
            leased,
        } = worker;
        if self.is_of_other_source(name, in_force) {
            return Err(Refusal::Configured);
        }
        if !self.named.contains_key(name) && self.named.len() >= MOST {
            return Err(Refusal::TooMany);
        }
        self.removed.remove(name);
        let member = MemberEntry {
            entry: entry.clone(),
            lease: leased.then_some(MemberLease { until: None }),
            instead: false,
            shared: true,
        };
        self.named.insert(name.to_owned(), member);
        Ok(())
    }

    /// Removes a worker that is no longer registered with any replica.
    pub(in crate::live) fn unshare(&mut self, name: &str) {
        if self.shared_entry(name).is_some() {
            self.named.remove(name);
            if self.removed.len() < MOST {
                self.removed.insert(name.to_owned());
            }
        }
    }
}
