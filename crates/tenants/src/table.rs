//! The keys that are accepted, and the tenants that they belong to.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use arc_swap::ArcSwap;
use foldhash::fast::FixedState;
use parking_lot::Mutex;

use crate::{
    DEFAULT_TENANT, EntryParts, KeyDigest, KeyEntry, RouterCount, SaltSecret, Tenant, TenantEntry,
    TenantsSection, ValidatedKeys,
    state::{NamedState, TenantState},
    tenant::{TenantContext, TenantRules},
};

/// Most tenants that are no longer configured whose state is kept, beside those with running
/// requests.
const MOST_REMOVED: usize = 16_384;

/// States of tenants by their names.
type States = HashMap<Arc<str>, Arc<TenantState>, FixedState>;

/// Tenants by the digests of their keys. An unkeyed hash suffices: a client cannot add entries.
type TenantsByKey = HashMap<KeyDigest, Arc<Tenant>, FixedState>;

/// All tenants of a configuration, by the digests of their keys.
#[derive(Debug)]
pub struct KeyTable {
    /// The tenant of every request, where no key is needed. Without it and without any key, no
    /// request is accepted.
    open: Option<Arc<Tenant>>,
    by_digest: TenantsByKey,
    /// Set where services decide which keys are valid.
    validated: Option<Arc<ValidatedKeys>>,
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
    /// The key's tenant, which is switched off.
    Disabled(&'a Arc<Tenant>),
    /// The tenant of a key that was valid until a time that has passed.
    Expired(&'a Arc<Tenant>),
    /// A service decides; what it said of this key.
    Validated(&'a ValidatedKeys, KeyDigest),
}

impl KeyTable {
    /// Returns the verdict about a key, at this time in seconds since 1970.
    pub fn verdict(&self, key: Option<&[u8]>, unix_s: i64) -> KeyVerdict<'_> {
        let tenant = match (&self.open, key) {
            (Some(tenant), _) => tenant,
            (None, None) => return KeyVerdict::Missing,
            (None, Some(key)) => {
                let digest = KeyDigest::of(key);
                match (self.by_digest.get(&digest), &self.validated) {
                    (Some(tenant), _) => tenant,
                    (None, Some(keys)) => return KeyVerdict::Validated(keys, digest),
                    (None, None) => return KeyVerdict::Unknown,
                }
            }
        };
        if !tenant.is_enabled() {
            KeyVerdict::Disabled(tenant)
        } else if tenant.is_expired(unix_s) {
            KeyVerdict::Expired(tenant)
        } else {
            KeyVerdict::Tenant(tenant)
        }
    }

    /// Returns whether callers need a key.
    pub fn requires_key(&self) -> bool {
        self.open.is_none()
    }

    /// Returns the keys that services decide about, where they do.
    pub fn validated(&self) -> Option<&Arc<ValidatedKeys>> {
        self.validated.as_ref()
    }

    /// Returns all tenants, by name; of one with several keys, the one whose key is accepted.
    pub fn tenants(&self) -> Vec<Arc<Tenant>> {
        let all = self.open.iter().chain(self.by_digest.values());
        let mut all: Vec<_> = all.map(Arc::clone).collect();
        if let Some(keys) = &self.validated {
            all.extend(keys.tenants());
        }
        all.sort_unstable_by_key(|tenant| (Arc::clone(tenant.name()), !tenant.is_enabled()));
        all.dedup_by(|one, other| one.name() == other.name());
        all
    }

    /// Builds the table of a configuration. Tenants keep the state that `states` has for their
    /// names; `states` gets those of new ones.
    fn of(section: &TenantsSection, kept: &KeptParts, states: &mut States) -> Self {
        let default = |states: &mut States| {
            let name: Arc<str> = DEFAULT_TENANT.into();
            let named = state_of(&name, states);
            Arc::new(Tenant::unlimited(section.media_urls_of(true), named))
        };
        let mut table = Self {
            open: None,
            by_digest: TenantsByKey::default(),
            validated: None,
        };
        // The first that is configured decides: tenants, one key, a service, or none.
        match (section.lists_keys(), kept.secrets.key) {
            (false, None) if kept.validated.is_some() => {
                table.validated.clone_from(&kept.validated);
            }
            (false, None) => table.open = Some(default(states)),
            (false, Some(digest)) => drop(table.by_digest.insert(digest, default(states))),
            (true, _) => table.by_digest = tenants_by_key(section, kept, states),
        }
        table
    }

    /// Returns whether it accepts no request at all.
    fn is_closed(&self) -> bool {
        self.open.is_none() && self.by_digest.is_empty() && self.validated.is_none()
    }

    /// Returns the names of all tenants.
    fn names(&self) -> HashSet<&str> {
        let all = self.open.iter().chain(self.by_digest.values());
        all.map(|tenant| &**tenant.name()).collect()
    }
}

/// Returns the tenants of the entries of a configuration and of its file of keys.
fn tenants_by_key(section: &TenantsSection, kept: &KeptParts, states: &mut States) -> TenantsByKey {
    let is_alone = !section.has_several();
    let context = TenantContext::of(section, is_alone, &kept.secrets.salt, &kept.routers);
    let mut parts = EntryParts::default();
    let own = section.api_keys.iter();
    let own = own.filter_map(|entry| Some(KeyEntry::of(entry, digest_of(entry)?, &mut parts)));
    let own: Vec<KeyEntry> = own.collect();
    let listed = section.listed.entries();
    let most = own.len() + listed.len();
    let mut tenants = TenantsByKey::with_capacity_and_hasher(most, FixedState::default());
    // By the addresses of the entries' rules, which equal entries share.
    let mut rules: HashMap<_, Arc<TenantRules>, FixedState> = HashMap::default();
    for entry in own.iter().chain(listed) {
        let rules = rules
            .entry(Arc::as_ptr(entry.rules()))
            .or_insert_with(|| Arc::new(TenantRules::of(entry.rules(), context)));
        let named = state_of(entry.name(), states);
        let tenant = Tenant::of(entry, Arc::clone(rules), named);
        tenants.insert(entry.digest(), Arc::new(tenant));
    }
    tenants
}

/// Returns a name as `states` has it and its state, which is made if there is none.
fn state_of(name: &Arc<str>, states: &mut States) -> NamedState {
    if let Some((name, state)) = states.get_key_value(name) {
        return (Arc::clone(name), Arc::clone(state));
    }
    let named: NamedState = (Arc::clone(name), Arc::default());
    states.insert(Arc::clone(&named.0), Arc::clone(&named.1));
    named
}

/// Returns a copy of the section in which keys are digests.
fn without_keys(section: &TenantsSection) -> TenantsSection {
    let mut copy = section.clone();
    copy.hash_keys();
    copy
}

/// Returns the digest of an entry's key; the check of the configuration leaves none without one.
fn digest_of(entry: &TenantEntry) -> Option<KeyDigest> {
    match (&entry.key, &entry.key_sha256) {
        (Some(key), _) => Some(KeyDigest::of(key.expose().as_bytes())),
        (None, Some(digest)) => KeyDigest::from_hex(digest.expose()).ok(),
        (None, None) => None,
    }
}

/// What is not in section `tenants` itself.
#[derive(Clone, Debug, Default)]
pub struct TenantSecrets {
    /// The digest of the one key that is required where the configuration has no tenants, if any.
    pub key: Option<KeyDigest>,
    /// The content of the file `salt_secret_file`.
    pub salt: SaltSecret,
}

impl TenantSecrets {
    /// Returns secrets without one for salts.
    pub fn of_key(key: &str) -> Self {
        Self {
            key: Some(KeyDigest::of(key.as_bytes())),
            ..Self::default()
        }
    }
}

/// What stays the same when the configuration changes.
#[derive(Debug)]
struct KeptParts {
    secrets: TenantSecrets,
    routers: RouterCount,
    validated: Option<Arc<ValidatedKeys>>,
}

/// The table in force.
#[derive(Debug)]
pub struct Tenants {
    table: ArcSwap<KeyTable>,
    /// The section that the table is made of.
    section: Mutex<TenantsSection>,
    kept: KeptParts,
    /// Of the tenants in force, and of at most [`MOST_REMOVED`] others and those with running
    /// requests. Locked during a change.
    states: Mutex<States>,
}

impl Tenants {
    /// Creates the table of a configuration.
    pub fn new(section: &TenantsSection, secrets: TenantSecrets) -> Self {
        let (mut states, routers) = (States::default(), RouterCount::default());
        let validated = (!section.key_validation.is_empty())
            .then(|| Arc::new(ValidatedKeys::new(section, &secrets.salt, &routers)));
        let kept = KeptParts {
            secrets,
            routers,
            validated,
        };
        let table = KeyTable::of(section, &kept, &mut states);
        Self {
            table: ArcSwap::from_pointee(table),
            section: Mutex::new(without_keys(section)),
            kept,
            states: Mutex::new(states),
        }
    }

    /// Replaces the table, if the section has changed: most changes of a configuration are of
    /// workers. Running requests keep their places. Returns whether no request is accepted from now
    /// on: where keys were required, a configuration without any does not open the API until the
    /// next start.
    pub fn reconfigure(&self, section: &TenantsSection) -> bool {
        let states = &mut *self.states.lock();
        let in_force = &mut *self.section.lock();
        let current = self.table.load();
        if *in_force == *section {
            return current.is_closed();
        }
        let mut next = KeyTable::of(section, &self.kept, states);
        if current.requires_key() {
            next.open = None;
        }
        let names = next.names();
        let removed = states.len().saturating_sub(names.len());
        if removed > MOST_REMOVED {
            states.retain(|name, state| names.contains(&**name) || state.is_running());
        }
        drop(names);
        let closed = next.is_closed();
        self.table.store(Arc::new(next));
        *in_force = without_keys(section);
        closed
    }

    /// Returns the number of routers that share the limits, to be set.
    pub fn routers(&self) -> &RouterCount {
        &self.kept.routers
    }

    /// Returns the table in force.
    pub fn table(&self) -> Arc<KeyTable> {
        self.table.load_full()
    }
}

/// No key is needed.
impl Default for Tenants {
    fn default() -> Self {
        Self::new(&TenantsSection::default(), TenantSecrets::default())
    }
}

#[cfg(test)]
mod tests;
