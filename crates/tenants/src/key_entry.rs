//! Entries of keys as 100,000 of them are kept: parts that are equal stand in memory once.
//!
//! A [`TenantEntry`] is what a file says; here is what the table of keys needs of it.

use std::{
    collections::HashMap,
    hash::{BuildHasher as _, Hash, Hasher},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use foldhash::fast::FixedState;

use crate::{EngineField, KeyDigest, Scope, TenantEntry, expiry};

/// The entries of a keys file, shared by all copies of a configuration.
#[derive(Clone, Debug, Default)]
pub struct ListedKeys(Arc<[KeyEntry]>);

impl ListedKeys {
    /// Takes the entries.
    pub fn new(entries: Vec<KeyEntry>) -> Self {
        Self(entries.into())
    }

    /// Returns the entries.
    pub fn entries(&self) -> &[KeyEntry] {
        &self.0
    }
}

/// Copies of one list are equal without a look at their entries.
impl PartialEq for ListedKeys {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

/// An entry with the digest of its key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyEntry {
    digest: KeyDigest,
    name: Arc<str>,
    rules: Arc<EntryRules>,
    /// Seconds since 1970.
    expires_at: Option<i64>,
    enabled: bool,
    /// `None`: there is none.
    metadata: Option<Arc<EntryMetadata>>,
}

impl KeyEntry {
    /// Returns the entry of a key; `parts` has those of earlier entries, and gets those of this one.
    pub fn of(entry: &TenantEntry, digest: KeyDigest, parts: &mut EntryParts) -> Self {
        let metadata = EntryMetadata::of(entry);
        Self {
            digest,
            name: entry.name.as_str().into(),
            rules: parts.rules.share(EntryRules::of(entry)),
            // Checked with the configuration; a key whose time cannot be read has expired.
            expires_at: (entry.expires_at.as_ref()).map(|text| expiry(text).unwrap_or(i64::MIN)),
            enabled: entry.enabled,
            metadata: metadata.map(|metadata| parts.metadata.share(metadata)),
        }
    }

    /// Returns the digest of the key.
    pub fn digest(&self) -> KeyDigest {
        self.digest
    }

    /// Returns the name of the tenant.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the rules of the tenant.
    pub fn rules(&self) -> &Arc<EntryRules> {
        &self.rules
    }

    /// Returns whether the key is accepted at all.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the time from which the key is refused, in seconds since 1970.
    pub(crate) fn expires_at(&self) -> Option<i64> {
        self.expires_at
    }

    /// Returns the operator's notes, if there are any.
    pub(crate) fn metadata(&self) -> Option<&Arc<EntryMetadata>> {
        self.metadata.as_ref()
    }

    /// Returns whether another entry gives its tenant the same rules.
    pub fn has_rules_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.rules, &other.rules) || self.rules == other.rules
    }

    /// Takes the text of the name from another entry of the same tenant.
    pub fn share_name_of(&mut self, other: &Self) {
        if self.name == other.name {
            self.name = Arc::clone(&other.name);
        }
    }
}

/// What an entry says of its tenant: all but what belongs to a key.
#[derive(Clone, Debug, PartialEq)]
pub struct EntryRules {
    pub(crate) scopes: Box<[Scope]>,
    pub(crate) allowed_models: Box<[Box<str>]>,
    pub(crate) engine_fields: Box<[EngineField]>,
    pub(crate) rate_limit_rps: Option<f64>,
    pub(crate) max_concurrent: Option<NonZeroU32>,
    pub(crate) prompt_tokens_per_minute: Option<NonZeroU32>,
    pub(crate) output_tokens_per_minute: Option<NonZeroU32>,
    pub(crate) weight: f64,
    pub(crate) priority: f64,
    pub(crate) slo_ttft: Option<Duration>,
    pub(crate) slo_tpot: Option<Duration>,
}

impl EntryRules {
    /// Returns the rules of an entry. A key that is added to entries is to be named here.
    pub fn of(entry: &TenantEntry) -> Self {
        let TenantEntry {
            name: _,
            key: _,
            key_sha256: _,
            scopes,
            allowed_models,
            engine_fields,
            rate_limit_rps,
            max_concurrent,
            prompt_tokens_per_minute,
            output_tokens_per_minute,
            weight,
            priority,
            slo_ttft,
            slo_tpot,
            expires_at: _,
            enabled: _,
            metadata: _,
        } = entry;
        Self {
            scopes: scopes.as_slice().into(),
            allowed_models: allowed_models
                .iter()
                .map(|model| model.as_str().into())
                .collect(),
            engine_fields: engine_fields.as_slice().into(),
            rate_limit_rps: *rate_limit_rps,
            max_concurrent: *max_concurrent,
            prompt_tokens_per_minute: *prompt_tokens_per_minute,
            output_tokens_per_minute: *output_tokens_per_minute,
            weight: *weight,
            priority: *priority,
            slo_ttft: *slo_ttft,
            slo_tpot: *slo_tpot,
        }
    }
}

/// Equal rules have one hash: no number here is NaN, and -0 counts as 0.
impl Hash for EntryRules {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let bits = |number: f64| (number + 0.0).to_bits();
        self.scopes.hash(hasher);
        self.allowed_models.hash(hasher);
        self.engine_fields.hash(hasher);
        self.rate_limit_rps.map(bits).hash(hasher);
        self.max_concurrent.hash(hasher);
        self.prompt_tokens_per_minute.hash(hasher);
        self.output_tokens_per_minute.hash(hasher);
        bits(self.weight).hash(hasher);
        bits(self.priority).hash(hasher);
        self.slo_ttft.hash(hasher);
        self.slo_tpot.hash(hasher);
    }
}

/// The operator's notes on a key: names and values.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct EntryMetadata(Box<[(Box<str>, Box<str>)]>);

impl EntryMetadata {
    /// Returns the notes of an entry, if it has any.
    fn of(entry: &TenantEntry) -> Option<Self> {
        let notes = entry.metadata.iter();
        let notes = notes.map(|(name, value)| (name.as_str().into(), value.as_str().into()));
        (!entry.metadata.is_empty()).then(|| Self(notes.collect()))
    }

    /// Returns the notes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}

/// Parts of entries, each of which equal entries share.
#[derive(Debug, Default)]
pub struct EntryParts {
    rules: SharedValues<EntryRules>,
    metadata: SharedValues<EntryMetadata>,
}

/// Values by their hashes. Of two with one hash the later one stays.
#[derive(Debug)]
struct SharedValues<T>(HashMap<u64, Arc<T>, FixedState>);

impl<T> Default for SharedValues<T> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<T: Hash + PartialEq> SharedValues<T> {
    /// Returns the known value that is equal, or this one, which is known from now on.
    fn share(&mut self, value: T) -> Arc<T> {
        let hash = self.0.hasher().hash_one(&value);
        let known = self.0.get(&hash).filter(|known| ***known == value);
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let value = Arc::new(value);
        self.0.insert(hash, Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;
    use crate::Tenant;

    fn entry(name: &str) -> TenantEntry {
        TenantEntry {
            allowed_models: vec!["llama-*".to_owned()],
            rate_limit_rps: Some(10.0),
            max_concurrent: NonZeroU32::new(16),
            ..TenantEntry::named(name)
        }
    }

    fn key(entry: &TenantEntry, parts: &mut EntryParts) -> KeyEntry {
        KeyEntry::of(entry, KeyDigest::of(entry.name.as_bytes()), parts)
    }

    #[test]
    fn equal_rules_and_notes_of_different_tenants_stand_in_memory_once() {
        let mut parts = EntryParts::default();
        let noted = |name: &str, value: &str| TenantEntry {
            metadata: [("team".to_owned(), value.to_owned())].into(),
            ..entry(name)
        };
        let [one, other, third] =
            [noted("a", "x"), noted("b", "x"), noted("c", "y")].map(|it| key(&it, &mut parts));
        assert!(Arc::ptr_eq(one.rules(), other.rules()));
        let notes = [&one, &other, &third].map(|it| it.metadata().expect("it has notes"));
        assert!(Arc::ptr_eq(notes[0], notes[1]));
        assert_eq!(notes[2].iter().collect::<Vec<_>>(), [("team", "y")]);
        assert!(key(&entry("d"), &mut parts).metadata().is_none());
    }

    #[test]
    fn a_value_with_the_hash_of_another_one_is_kept_as_it_is() {
        #[derive(Debug, PartialEq)]
        struct SameHash(u8);
        impl Hash for SameHash {
            fn hash<H: Hasher>(&self, hasher: &mut H) {
                hasher.write_u8(0);
            }
        }
        let mut values = SharedValues::default();
        for number in [1, 2, 1, 1] {
            assert_eq!(*values.share(SameHash(number)), SameHash(number));
        }
    }

    #[test]
    #[contract("V31")]
    fn every_rule_of_a_tenant_counts_in_a_comparison_and_nothing_of_a_key_does() {
        let first = entry("a");
        let changed = |change: fn(&mut TenantEntry)| {
            let mut other = first.clone();
            change(&mut other);
            let mut parts = EntryParts::default();
            let (first, other) = (key(&first, &mut parts), key(&other, &mut parts));
            assert_eq!(
                first.has_rules_of(&other),
                Arc::ptr_eq(first.rules(), other.rules())
            );
            first.has_rules_of(&other)
        };
        let rules: [fn(&mut TenantEntry); 12] = [
            |it| it.scopes.truncate(1),
            |it| it.scopes.reverse(),
            |it| it.allowed_models.clear(),
            |it| it.engine_fields.push(EngineField::Priority),
            |it| it.rate_limit_rps = None,
            |it| it.max_concurrent = NonZeroU32::new(17),
            |it| it.prompt_tokens_per_minute = NonZeroU32::new(1),
            |it| it.output_tokens_per_minute = NonZeroU32::new(1),
            |it| it.weight = 2.0,
            |it| it.priority = 1.0,
            |it| it.slo_ttft = Some(Duration::from_millis(500)),
            |it| it.slo_tpot = Some(Duration::from_millis(50)),
        ];
        assert!(rules.into_iter().all(|change| !changed(change)));
        let of_key: [fn(&mut TenantEntry); 5] = [
            |it| it.name.push('b'),
            |it| it.expires_at = Some("2027-01-31T00:00:00Z".to_owned()),
            |it| it.enabled = false,
            |it| it.metadata = [("team".to_owned(), "x".to_owned())].into(),
            // As numbers the two are equal.
            |it| it.priority = -0.0,
        ];
        assert!(of_key.into_iter().all(changed));
    }

    #[test]
    fn lists_are_equal_by_their_keys_and_by_all_that_these_say() {
        let list =
            |entry: &TenantEntry| ListedKeys::new(vec![key(entry, &mut EntryParts::default())]);
        let first = entry("a");
        assert_eq!(list(&first), list(&first));
        let off = TenantEntry {
            enabled: false,
            ..first.clone()
        };
        assert_ne!(list(&first), list(&off));
        assert_ne!(list(&first), list(&entry("b")));
        assert_ne!(list(&first), ListedKeys::default());
    }

    #[test]
    fn an_entry_takes_the_name_only_of_its_own_tenant() {
        let mut parts = EntryParts::default();
        let [first, mut second, mut other] = ["a", "a", "b"].map(|it| key(&entry(it), &mut parts));
        second.share_name_of(&first);
        other.share_name_of(&first);
        assert!(Arc::ptr_eq(first.name(), second.name()));
        assert_eq!(&**other.name(), "b");
    }

    /// A file has up to 100,000 of them.
    #[test]
    fn an_entry_and_its_tenant_are_small() {
        assert!(size_of::<KeyEntry>() <= 88, "{}", size_of::<KeyEntry>());
        assert!(size_of::<Tenant>() <= 64, "{}", size_of::<Tenant>());
    }
}
