//! The keys that are accepted, and the tenants that they belong to.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use foldhash::fast::FixedState;

use crate::{DEFAULT_TENANT, KeyDigest, Tenant, TenantEntry, TenantsSection, state::TenantState};

/// All tenants of a configuration, by the digests of their keys.
#[derive(Debug)]
pub struct KeyTable {
    /// The tenant of every request, where no key is needed.
    open: Option<Arc<Tenant>>,
    /// An unkeyed hash suffices: a client cannot add entries.
    by_digest: HashMap<KeyDigest, Arc<Tenant>, FixedState>,
}

/// What is known of the caller of a request.
#[derive(Debug)]
pub enum KeyVerdict<'a> {
    /// Its tenant.
    Tenant(&'a Arc<Tenant>),
    /// A key is needed, and there is none.
    Missing,
    /// The key is no one's.
    Unknown,
    /// The key's tenant is switched off.
    Disabled,
    /// The key was valid until a time that has passed.
    Expired,
}

impl KeyTable {
    /// Returns the verdict about a key, at this time in seconds since 1970.
    pub fn verdict(&self, key: Option<&[u8]>, unix_s: i64) -> KeyVerdict<'_> {
        let tenant = match (&self.open, key) {
            (Some(tenant), _) => tenant,
            (None, None) => return KeyVerdict::Missing,
            (None, Some(key)) => match self.by_digest.get(&KeyDigest::of(key)) {
                Some(tenant) => tenant,
                None => return KeyVerdict::Unknown,
            },
        };
        if !tenant.is_enabled() {
            KeyVerdict::Disabled
        } else if tenant.is_expired(unix_s) {
            KeyVerdict::Expired
        } else {
            KeyVerdict::Tenant(tenant)
        }
    }

    /// Returns whether callers need a key.
    pub fn requires_key(&self) -> bool {
        self.open.is_none()
    }

    /// Returns all tenants, by name.
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        let all = self.open.iter().chain(self.by_digest.values());
        let mut all: Vec<_> = all.map(Arc::clone).collect();
        all.sort_unstable_by(|one, other| one.name().cmp(other.name()));
        all
    }

    /// Builds the table of a configuration. Tenants keep the state that they have in `earlier`.
    fn of(section: &TenantsSection, fallback: Option<KeyDigest>, earlier: Option<&Self>) -> Self {
        let known = earlier.map(Self::states).unwrap_or_default();
        let state = |name: &str| {
            known
                .get(name)
                .map(|state| Arc::clone(state))
                .unwrap_or_default()
        };
        let default = || Arc::new(Tenant::unlimited(DEFAULT_TENANT, state(DEFAULT_TENANT)));
        let mut table = Self {
            open: None,
            by_digest: HashMap::with_hasher(FixedState::default()),
        };
        // The first that is configured decides: tenants, one key, or none.
        match (section.api_keys.as_slice(), fallback) {
            ([], None) => table.open = Some(default()),
            ([], Some(digest)) => drop(table.by_digest.insert(digest, default())),
            (entries, _) => {
                let overrides = section.defaults.overrides || entries.len() == 1;
                table.by_digest.reserve(entries.len());
                for entry in entries {
                    let defaults = (overrides, section.defaults.queued);
                    let tenant = Tenant::of(entry, defaults, state(&entry.name));
                    if let Some(digest) = digest_of(entry) {
                        table.by_digest.insert(digest, Arc::new(tenant));
                    }
                }
            }
        }
        table
    }

    fn states(&self) -> HashMap<&str, &Arc<TenantState>, FixedState> {
        let all = self.open.iter().chain(self.by_digest.values());
        all.map(|tenant| (&**tenant.name(), tenant.state()))
            .collect()
    }
}

/// Returns the digest of an entry's key; the check of the configuration leaves none without one.
fn digest_of(entry: &TenantEntry) -> Option<KeyDigest> {
    match (&entry.key, &entry.key_sha256) {
        (Some(key), _) => Some(KeyDigest::of(key.expose().as_bytes())),
        (None, Some(digest)) => KeyDigest::from_hex(digest.expose()).ok(),
        (None, None) => None,
    }
}

/// The table in force.
#[derive(Debug)]
pub struct Tenants {
    table: ArcSwap<KeyTable>,
    /// Of the key that is required where the configuration has no tenants.
    fallback: Option<KeyDigest>,
}

impl Tenants {
    /// Creates the table of a configuration. `key`: the one key that is required where the
    /// configuration has none, if any.
    pub fn new(section: &TenantsSection, key: Option<&str>) -> Self {
        let fallback = key.map(|key| KeyDigest::of(key.as_bytes()));
        Self {
            table: ArcSwap::from_pointee(KeyTable::of(section, fallback, None)),
            fallback,
        }
    }

    /// Replaces the table. Running requests keep their places.
    pub fn reconfigure(&self, section: &TenantsSection) {
        let earlier = self.table.load();
        let next = KeyTable::of(section, self.fallback, Some(&earlier));
        self.table.store(Arc::new(next));
    }

    /// Returns the table in force.
    pub fn table(&self) -> Arc<KeyTable> {
        self.table.load_full()
    }
}

/// No key is needed.
impl Default for Tenants {
    fn default() -> Self {
        Self::new(&TenantsSection::default(), None)
    }
}

#[cfg(test)]
mod tests;
