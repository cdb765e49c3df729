//! The key of a cached reply.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};

/// Bytes of a name's digest in a key. Names whose digests are equal are only cleared together.
const LABEL: usize = 8;
/// Hex digits of a digest of a request.
const DIGEST_DIGITS: usize = 64;
/// Hex digits of both labels.
const SCOPE_DIGITS: usize = 4 * LABEL;

/// The tenant and model of a cached reply, as digests of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheScope {
    tenant: [u8; LABEL],
    model: [u8; LABEL],
}

/// The key of a reply: its scope, and the digest of everything that it depends on, tenant included;
/// computed by `dialect`.
///
/// ```
/// use response_cache::{CacheKey, CacheScope};
///
/// let key = CacheKey::new(CacheScope::of("team-a", "m"), [0xab; 32]);
/// assert!(key.to_string().ends_with(&"ab".repeat(32)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey {
    scope: CacheScope,
    digest: [u8; 32],
}

/// Entries to remove: all, or those of a tenant, of a model, or of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSelection {
    tenant: Option<[u8; LABEL]>,
    model: Option<[u8; LABEL]>,
}

impl CacheScope {
    /// Returns the scope of these names.
    pub fn of(tenant: &str, model: &str) -> Self {
        Self {
            tenant: label("tenant", tenant),
            model: label("model", model),
        }
    }
}

impl CacheKey {
    /// Joins both parts.
    pub fn new(scope: CacheScope, digest: [u8; 32]) -> Self {
        Self { scope, digest }
    }

    /// Returns the bytes of all parts, in the order of the name.
    pub(crate) fn parts(&self) -> [&[u8]; 3] {
        [&self.scope.tenant, &self.scope.model, &self.digest]
    }

    /// Returns whether a text has the form of a stored key: other names do not belong to this
    /// cache. Earlier releases stored the digest alone.
    pub(crate) fn is_name(text: &str) -> bool {
        [DIGEST_DIGITS, SCOPE_DIGITS + DIGEST_DIGITS].contains(&text.len())
            && text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }
}

/// Hex digits, as in stores.
impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = self.parts().into_iter().flatten();
        bytes.try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl CacheSelection {
    /// All entries.
    pub const ALL: Self = Self {
        tenant: None,
        model: None,
    };

    /// Returns the entries of these names; `None` stands for any.
    pub fn of(tenant: Option<&str>, model: Option<&str>) -> Self {
        Self {
            tenant: tenant.map(|name| label("tenant", name)),
            model: model.map(|name| label("model", name)),
        }
    }

    pub(crate) fn contains(&self, key: &CacheKey) -> bool {
        self.tenant.is_none_or(|tenant| tenant == key.scope.tenant)
            && self.model.is_none_or(|model| model == key.scope.model)
    }

    /// Returns whether a name in a store is that of a selected entry. A name without a scope is
    /// selected only with all others.
    pub(crate) fn contains_name(&self, name: &str) -> bool {
        if !CacheKey::is_name(name) {
            return false;
        }
        let scope = name
            .get(..SCOPE_DIGITS)
            .filter(|_| name.len() > DIGEST_DIGITS);
        let is_at = |part: Option<[u8; LABEL]>, at: usize| {
            part.is_none_or(|part| {
                scope.is_some_and(|scope| scope.get(at..at + 2 * LABEL) == Some(&hex(part)))
            })
        };
        is_at(self.tenant, 0) && is_at(self.model, 2 * LABEL)
    }
}

fn hex(bytes: [u8; LABEL]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Names stand in stores as digests: they may be long, or private.
fn label(kind: &str, name: &str) -> [u8; LABEL] {
    let mut digest = Context::new(&SHA256);
    for part in [kind, "\0", name] {
        digest.update(part.as_bytes());
    }
    let mut label = [0; LABEL];
    label.copy_from_slice(&digest.finish().as_ref()[..LABEL]);
    label
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn key(tenant: &str, model: &str) -> CacheKey {
        CacheKey::new(CacheScope::of(tenant, model), [7; 32])
    }

    #[test]
    fn only_a_well_formed_name_parses_as_a_key() {
        let name = key("a", "m").to_string();
        assert_eq!(name.len(), 96);
        assert!(CacheKey::is_name(&name) && CacheKey::is_name(&name[32..]));
        for other in [
            "",
            &name[1..],
            &name[31..],
            &name.replace('7', "A"),
            &format!("{name}0"),
            &name.replace('7', "g"),
        ] {
            assert!(!CacheKey::is_name(other), "{other}");
        }
    }

    #[test]
    #[contract("S48")]
    fn a_selection_contains_the_entries_of_its_tenant_and_model_by_key_and_by_name() {
        let selection = CacheSelection::of;
        for (selection, tenant, model, contained) in [
            (CacheSelection::ALL, "a", "m", true),
            (selection(Some("a"), None), "a", "m", true),
            (selection(Some("a"), None), "a", "n", true),
            (selection(Some("a"), None), "b", "m", false),
            (selection(None, Some("m")), "b", "m", true),
            (selection(None, Some("m")), "b", "n", false),
            (selection(Some("a"), Some("m")), "a", "m", true),
            (selection(Some("a"), Some("m")), "a", "n", false),
            (selection(Some("a"), Some("m")), "b", "m", false),
            // A tenant is no model of the same name.
            (selection(None, Some("a")), "a", "m", false),
            // Names are no patterns.
            (selection(Some("*"), None), "a", "m", false),
            (selection(Some("?"), Some("[m]")), "a", "m", false),
        ] {
            let key = key(tenant, model);
            assert_eq!(
                selection.contains(&key),
                contained,
                "{selection:?} {tenant} {model}"
            );
            let by_name = selection.contains_name(&key.to_string());
            assert_eq!(by_name, contained, "{selection:?} {tenant} {model}");
        }
        let without_scope = "7".repeat(64);
        assert!(CacheSelection::ALL.contains_name(&without_scope));
        assert!(!selection(Some("a"), None).contains_name(&without_scope));
        assert!(!CacheSelection::ALL.contains_name("another program's"));
    }
}
