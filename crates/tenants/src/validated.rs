//! Keys of which a service outside this router has said whether they are valid.
//!
//! **Invariant**: a key that no service has accepted within the time to live belongs to no one.

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use kv_blocks::Moment;
use lru::LruCache;
use parking_lot::Mutex;

use crate::{
    EntryRules, KeyDigest, RouterCount, SaltSecret, Tenant, TenantEntry, TenantsSection,
    state::TenantState,
    tenant::{TenantContext, TenantRules},
};

/// Most keys that are known as accepted; the least recently used is asked about again.
const MOST_ACCEPTED: NonZeroUsize = NonZeroUsize::new(16_384).unwrap();
/// Most keys that are known as refused. They have a place of their own, so that wrong keys push no
/// accepted one out.
const MOST_REFUSED: NonZeroUsize = NonZeroUsize::new(4_096).unwrap();
/// Time for which a refused key is not asked about again.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Hexadecimal digits of a key's digest in the name of its tenant.
const SHOWN_DIGITS: usize = 12;

/// The keys, each accepted one with a tenant of its own.
#[derive(Debug)]
pub struct ValidatedKeys {
    accepted: Mutex<LruCache<KeyDigest, AcceptedKey>>,
    refused: Mutex<LruCache<KeyDigest, Moment>>,
    /// Time after the last acceptance for which a key is accepted.
    ttl: Duration,
    /// Of every tenant.
    rules: Arc<TenantRules>,
}

#[derive(Debug)]
struct AcceptedKey {
    tenant: Arc<Tenant>,
    at: Moment,
}

/// What is known of a key.
#[derive(Clone, Debug)]
pub enum KnownKey {
    /// It must be asked about.
    Unknown,
    /// It was refused just now.
    Refused,
    /// It was accepted, and passes.
    Accepted {
        /// The tenant of this key.
        tenant: Arc<Tenant>,
        /// More than half of the time to live has passed: it should be asked about again meanwhile.
        is_ageing: bool,
    },
}

impl ValidatedKeys {
    pub(crate) fn new(
        section: &TenantsSection,
        secret: &SaltSecret,
        routers: &RouterCount,
    ) -> Self {
        let is_alone = false;
        let context = TenantContext::of(section, is_alone, secret, routers);
        let rules = EntryRules::of(&TenantEntry::named(""));
        Self {
            accepted: Mutex::new(LruCache::new(MOST_ACCEPTED)),
            refused: Mutex::new(LruCache::new(MOST_REFUSED)),
            ttl: section.key_validation_ttl,
            rules: Arc::new(TenantRules::of(&rules, context)),
        }
    }

    /// Returns what is known of a key.
    pub fn find(&self, digest: KeyDigest, now: Moment) -> KnownKey {
        if let Some(key) = self.accepted.lock().get(&digest) {
            let age = now.since(key.at);
            if age < self.ttl {
                return KnownKey::Accepted {
                    tenant: Arc::clone(&key.tenant),
                    is_ageing: age > self.ttl / 2,
                };
            }
        }
        let refused = self.refused.lock().get(&digest).copied();
        match refused {
            Some(at) if now.since(at) < REFUSED_FOR => KnownKey::Refused,
            _ => KnownKey::Unknown,
        }
    }

    /// Records that the service accepts a key now. Its tenant keeps its state.
    pub fn accept(&self, digest: KeyDigest, now: Moment) {
        self.refused.lock().pop(&digest);
        let mut accepted = self.accepted.lock();
        match accepted.get_mut(&digest) {
            Some(key) => key.at = now,
            None => {
                let tenant = Arc::new(self.tenant(digest));
                accepted.put(digest, AcceptedKey { tenant, at: now });
            }
        }
    }

    /// Records that the service refuses a key now, also one that it accepted before.
    pub fn refuse(&self, digest: KeyDigest, now: Moment) {
        self.accepted.lock().pop(&digest);
        self.refused.lock().put(digest, now);
    }

    /// Returns the tenants of the accepted keys.
    pub(crate) fn tenants(&self) -> Vec<Arc<Tenant>> {
        let accepted = self.accepted.lock();
        (accepted.iter().map(|(_, key)| Arc::clone(&key.tenant))).collect()
    }

    fn tenant(&self, digest: KeyDigest) -> Tenant {
        let hex = digest.to_hex();
        let name = format!("key-{}", &hex[..SHOWN_DIGITS]);
        let named = (name.into(), Arc::new(TenantState::default()));
        Tenant::with_rules(Arc::clone(&self.rules), named)
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;
    use crate::Scope;

    const TTL: Duration = Duration::from_secs(60);

    fn keys() -> ValidatedKeys {
        let section = TenantsSection {
            key_validation_ttl: TTL,
            ..TenantsSection::default()
        };
        ValidatedKeys::new(&section, &SaltSecret::default(), &RouterCount::default())
    }

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    fn digest(key: &str) -> KeyDigest {
        KeyDigest::of(key.as_bytes())
    }

    fn found(keys: &ValidatedKeys, key: &str, seconds: u64) -> &'static str {
        match keys.find(digest(key), at(seconds)) {
            KnownKey::Unknown => "unknown",
            KnownKey::Refused => "refused",
            KnownKey::Accepted { is_ageing, .. } if is_ageing => "ageing",
            KnownKey::Accepted { .. } => "accepted",
        }
    }

    #[test]
    #[contract("F94")]
    fn an_accepted_key_passes_for_the_time_to_live_and_no_longer() {
        let keys = keys();
        assert_eq!(found(&keys, "a", 0), "unknown");
        keys.accept(digest("a"), at(0));
        assert_eq!(found(&keys, "a", 30), "accepted");
        assert_eq!(found(&keys, "a", 31), "ageing");
        assert_eq!(found(&keys, "a", 59), "ageing");
        assert_eq!(found(&keys, "a", 60), "unknown");
        keys.accept(digest("a"), at(61));
        assert_eq!(found(&keys, "a", 90), "accepted");
    }

    #[test]
    #[contract("F94")]
    fn a_refused_key_is_asked_about_again_soon_and_a_revoked_one_passes_no_more() {
        let keys = keys();
        keys.accept(digest("a"), at(0));
        keys.refuse(digest("a"), at(1));
        assert_eq!(found(&keys, "a", 1), "refused");
        assert_eq!(found(&keys, "a", 11), "unknown");
        keys.accept(digest("a"), at(11));
        assert_eq!(found(&keys, "a", 11), "accepted");
    }

    #[test]
    #[contract("F94")]
    fn wrong_keys_push_no_accepted_one_out_and_both_are_bounded() {
        let keys = keys();
        keys.accept(digest("good"), at(0));
        for number in 0..MOST_REFUSED.get() + 10 {
            keys.refuse(digest(&format!("wrong-{number}")), at(0));
        }
        assert_eq!(found(&keys, "good", 1), "accepted");
        assert_eq!(found(&keys, "wrong-0", 1), "unknown");
        assert_eq!(keys.refused.lock().len(), MOST_REFUSED.get());
        for number in 0..MOST_ACCEPTED.get() + 10 {
            keys.accept(digest(&format!("more-{number}")), at(0));
        }
        assert_eq!(keys.accepted.lock().len(), MOST_ACCEPTED.get());
    }

    #[test]
    #[contract("F94", "S50")]
    fn every_key_is_a_tenant_of_its_own_and_never_the_default_one() {
        let keys = keys();
        let tenant = |key: &str| {
            keys.accept(digest(key), at(0));
            match keys.find(digest(key), at(0)) {
                KnownKey::Accepted { tenant, .. } => tenant,
                other => panic!("{other:?}"),
            }
        };
        let (one, other) = (tenant("sk-1"), tenant("sk-2"));
        assert_eq!(
            &**one.name(),
            "key-0f2c10bf3d12",
            "{}",
            digest("sk-1").to_hex()
        );
        assert_ne!(one.name(), other.name());
        assert_ne!(one.cache_salt(None), other.cache_salt(None));
        assert!(one.is_salted() && one.has_scope(Scope::Chat) && !one.has_scope(Scope::Overrides));
        assert!(Arc::ptr_eq(&one, &tenant("sk-1")), "with its running state");
    }
}
