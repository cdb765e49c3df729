//! Salts by which engines keep the cached blocks of tenants apart.
//!
//! The salt of a tenant is HMAC-SHA-256 over its name, so it is the same in every router with the
//! same secret and after every restart. Of a client's own salt and that of its tenant the HMAC is
//! taken again: whatever a client sends, its requests share blocks with no other tenant.

use std::sync::Arc;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

/// What the derivation is for; the number changes with it.
const PURPOSE: &[u8] = b"warmroute cache salt 1";

/// The secret of a router. Without one of its own a salt is still the tenant's own, but whoever
/// reaches an engine directly and knows a tenant's name can compute it. Copies share its memory,
/// which is overwritten when the last one is dropped.
#[derive(Clone, Default)]
pub struct SaltSecret(Arc<Zeroizing<Box<[u8]>>>);

/// The salt of a tenant.
#[derive(Clone, Copy)]
pub(crate) struct TenantSalt([u8; 32]);

impl SaltSecret {
    /// Takes the bytes of a secret.
    pub fn new(secret: &[u8]) -> Self {
        Self(Arc::new(Zeroizing::new(secret.into())))
    }

    pub(crate) fn salt_of(&self, tenant: &str) -> TenantSalt {
        TenantSalt(hmac(&self.0, &[PURPOSE, tenant.as_bytes()]))
    }
}

impl TenantSalt {
    /// Returns the salt for engines: 43 characters of the URL-safe alphabet.
    pub(crate) fn text(&self, client: Option<&str>) -> String {
        let salt = match client {
            None => self.0,
            Some(own) => hmac(&self.0, &[own.as_bytes()]),
        };
        BASE64_URL_SAFE_NO_PAD.encode(salt)
    }
}

/// Each part is preceded by its length, so that no two lists of parts are alike.
fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("an HMAC takes keys of any length");
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

impl std::fmt::Debug for SaltSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

impl std::fmt::Debug for TenantSalt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use contract_id::contract;

    use super::*;

    /// Secret, tenant, the client's salt, and the salt.
    const VECTORS: [(&str, &str, Option<&str>, &str); 4] = [
        (
            "",
            "default",
            None,
            "8WL4qmsSt2lnFwcHCF5acPJOc33Ou_5lyqEIe_9_4fQ",
        ),
        (
            "secret",
            "team-a",
            None,
            "8lCvCps1osRWs9rIlkETYfOUvoufiQ8bHG3bZkl73ls",
        ),
        (
            "secret",
            "team-a",
            Some("mine"),
            "y6SvsttK4lqK8XBSQIilroODFXGQIxNHxOL78kizGFE",
        ),
        (
            "",
            "\u{e4}",
            Some(""),
            "yk2_cX6A3MG_EqjmGY9k67tpdGN7h0xqxB6H7UUxK6c",
        ),
    ];

    fn salt(secret: &str, tenant: &str, client: Option<&str>) -> String {
        SaltSecret::new(secret.as_bytes())
            .salt_of(tenant)
            .text(client)
    }

    /// The values were computed with another implementation of HMAC.
    #[test]
    #[contract("S50")]
    fn a_salt_is_the_hmac_of_its_parts_with_their_lengths() {
        for (secret, tenant, client, expected) in VECTORS {
            assert_eq!(salt(secret, tenant, client), expected, "{tenant}");
        }
    }

    #[test]
    #[contract("S50", "S51")]
    fn two_splits_of_the_same_text_and_two_tenants_never_share_a_salt() {
        let all = [
            salt("", "org_1", None),
            salt("", "org_1", Some("")),
            salt("", "org_1", Some("2345")),
            salt("", "org_12345", None),
            salt("", "org_12345", Some("")),
            salt("2345", "org_1", None),
            salt("", "org_2", Some("2345")),
        ];
        assert!(all.iter().all(|salt| salt.len() == 43));
        let distinct: HashSet<&String> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(salt("", "a", Some("x")), salt("", "a", Some("x")));
    }
}
