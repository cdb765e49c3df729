//! The key of a client, and the place of its request among those of its tenant.

use std::sync::Arc;

use dialect::{ApiError, ErrorCode};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use kv_blocks::Moment;
use tenants::{KeyTable, KeyVerdict, KnownKey, Scope, Tenant, TenantPermit};

use crate::{errors, key_validation};

/// Headers that hold a key as it is, beside `Authorization: Bearer KEY`.
const KEY_HEADERS: [&str; 2] = ["x-api-key", "x-router-key"];

/// The key in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PresentedKey<'a> {
    Nothing,
    Key(&'a [u8]),
    /// Two different keys or a malformed header.
    Unclear,
    /// Two `Authorization` fields, of which a service behind this one may read the other.
    Repeated,
}

impl<'a> PresentedKey<'a> {
    /// Reads `Authorization: Bearer KEY`, `x-api-key: KEY` or `x-router-key: KEY`.
    pub(crate) fn of(headers: &'a HeaderMap) -> Self {
        let plain = KEY_HEADERS
            .iter()
            .flat_map(|name| headers.get_all(*name).iter().map(HeaderValue::as_bytes));
        let mut bearers = headers.get_all(AUTHORIZATION).iter();
        let bearer = bearers.next();
        if bearers.next().is_some() {
            return Self::Repeated;
        }
        let mut keys = bearer
            .into_iter()
            .map(|value| {
                let bytes = value.as_bytes();
                match bytes.split_at_checked(7) {
                    Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
                        key.trim_ascii()
                    }
                    _ => b"",
                }
            })
            .chain(plain);
        match (keys.next(), keys.next()) {
            (None, _) => Self::Nothing,
            (Some(b""), _) => Self::Unclear,
            (Some(key), None) => Self::Key(key),
            (Some(one), Some(other)) if one == other && keys.all(|more| more == one) => {
                Self::Key(one)
            }
            _ => Self::Unclear,
        }
    }
}

/// When a request came in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivalTime {
    pub(crate) received: Moment,
    /// Seconds since 1970.
    pub(crate) unix_s: i64,
}

/// What a route needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteAccess {
    pub(crate) scope: Scope,
    /// Whether it ends work of its tenant, so that no limit holds it up.
    pub(crate) releases: bool,
}

/// Finds the tenant of a request by its key, and takes the request's place among those of the
/// tenant. An error is the client's reply.
pub(crate) fn admit(
    table: &KeyTable,
    headers: &HeaderMap,
    access: RouteAccess,
    at: ArrivalTime,
) -> Result<TenantPermit, ApiError> {
    for_owner(table, headers, at, |tenant| {
        let admitted = if access.releases {
            tenant.admit_release(access.scope)
        } else {
            tenant.admit(access.scope, at.received)
        };
        admitted.map_err(|refusal| errors::refused_by_tenant(&refusal))
    })
}

/// Checks that the key of a request is valid, or that none is needed. No limit counts the request.
pub(crate) fn check(
    table: &KeyTable,
    headers: &HeaderMap,
    at: ArrivalTime,
) -> Result<(), ApiError> {
    for_owner(table, headers, at, |_| Ok(()))
}

/// Finds the tenant of a request by its key. Of a key that is not accepted the client learns
/// nothing else: not whether it ever was one.
fn for_owner<T>(
    table: &KeyTable,
    headers: &HeaderMap,
    at: ArrivalTime,
    enter: impl FnOnce(&Arc<Tenant>) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let key = match PresentedKey::of(headers) {
        PresentedKey::Repeated => return Err(repeated()),
        PresentedKey::Unclear if table.requires_key() => return Err(invalid()),
        PresentedKey::Nothing | PresentedKey::Unclear => None,
        PresentedKey::Key(key) => Some(key),
    };
    match table.verdict(key, at.unix_s) {
        KeyVerdict::Tenant(tenant) => enter(tenant),
        KeyVerdict::Validated(keys, digest) => match keys.find(digest, at.received) {
            KnownKey::Accepted { tenant, .. } => enter(&tenant),
            KnownKey::Refused => Err(invalid()),
            KnownKey::Unknown => Err(key_validation::unavailable()),
        },
        KeyVerdict::Missing => Err(ApiError::new(
            ErrorCode::MissingApiKey,
            "no API key: send it as `Authorization: Bearer KEY`",
        )),
        KeyVerdict::Unknown => Err(invalid()),
        KeyVerdict::Disabled(tenant) => {
            tracing::debug!(tenant = %tenant.name(), "a key that is switched off");
            Err(invalid())
        }
        KeyVerdict::Expired(tenant) => {
            tracing::debug!(tenant = %tenant.name(), "a key that has expired");
            Err(invalid())
        }
    }
}

fn invalid() -> ApiError {
    ApiError::new(
        ErrorCode::InvalidApiKey,
        "the API key is not valid here: check it",
    )
}

fn repeated() -> ApiError {
    ApiError::new(
        ErrorCode::InvalidRequest,
        "the request has more than one Authorization header: send one",
    )
}

#[cfg(test)]
mod tests {
    use config::Secret;
    use contract_id::contract;
    use tenants::{TenantEntry, TenantSecrets, Tenants, TenantsSection};

    use super::*;

    const AT: ArrivalTime = ArrivalTime {
        received: Moment::START,
        unix_s: 0,
    };

    const CHAT: RouteAccess = RouteAccess {
        scope: Scope::Chat,
        releases: false,
    };

    fn one_key(key: &str) -> Tenants {
        Tenants::new(&TenantsSection::default(), TenantSecrets::of_key(key))
    }

    fn headers(fields: &[(&'static str, &'static [u8])]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        map
    }

    fn code(keys: &Tenants, fields: &[(&'static str, &'static [u8])]) -> Option<ErrorCode> {
        let admitted = admit(&keys.table(), &headers(fields), CHAT, AT);
        admitted.err().map(|error| error.code)
    }

    #[test]
    #[contract("S6", "S8", "V33")]
    fn only_the_configured_key_is_accepted() {
        let keys = one_key("sk-1");
        assert_eq!(code(&keys, &[("authorization", b"Bearer sk-1")]), None);
        assert_eq!(code(&keys, &[("authorization", b"bearer sk-1")]), None);
        assert_eq!(code(&keys, &[("x-api-key", b"sk-1")]), None);
        assert_eq!(code(&keys, &[("x-router-key", b"sk-1")]), None);
        let everywhere = [
            ("x-api-key", b"sk-1".as_slice()),
            ("authorization", b"Bearer sk-1"),
            ("x-router-key", b"sk-1"),
        ];
        assert_eq!(code(&keys, &everywhere), None);
        assert_eq!(
            code(
                &keys,
                &[("x-api-key", b"sk-1"), ("authorization", b"Bearer sk-1")]
            ),
            None
        );
        assert_eq!(code(&keys, &[]), Some(ErrorCode::MissingApiKey));
        for wrong in [
            b"Bearer".as_slice(),
            b"Bearer ",
            b"Bearer sk-2",
            b"Basic sk-1",
            b"' OR '1'='1",
            b"Bearer \xff",
        ] {
            let map = [("authorization", wrong)];
            assert_eq!(
                code(&keys, &map),
                Some(ErrorCode::InvalidApiKey),
                "{}",
                wrong.escape_ascii()
            );
        }
        let two = [
            ("authorization", b"Bearer sk-1".as_slice()),
            ("x-api-key", b"other"),
        ];
        assert_eq!(code(&keys, &two), Some(ErrorCode::InvalidApiKey));
        let empty = [("x-router-key", b"".as_slice()), ("x-api-key", b"")];
        assert_eq!(code(&keys, &empty), Some(ErrorCode::InvalidApiKey));
        let three = [
            ("x-router-key", b"other".as_slice()),
            ("x-api-key", b"sk-1"),
            ("authorization", b"Bearer sk-1"),
        ];
        assert_eq!(code(&keys, &three), Some(ErrorCode::InvalidApiKey));
    }

    #[test]
    fn without_a_key_every_request_is_accepted() {
        for fields in [&[][..], &[("authorization", b"Basic x".as_slice())]] {
            assert_eq!(code(&Tenants::default(), fields), None);
        }
    }

    #[test]
    #[contract("S6")]
    fn two_authorization_fields_are_refused_before_any_key_is_looked_up() {
        for (one, other) in [
            (b"Bearer sk-1".as_slice(), b"Bearer sk-1".as_slice()),
            (b"Bearer sk-1", b"Bearer sk-2"),
            (b"Bearer sk-2", b"Bearer sk-1"),
            (b"Bearer sk-2", b"Bearer sk-2"),
            (b"", b""),
        ] {
            let two = [("authorization", one), ("authorization", other)];
            let beside = [two[0], two[1], ("x-api-key", b"sk-1".as_slice())];
            for keys in [one_key("sk-1"), Tenants::default()] {
                for fields in [&two[..], &beside[..]] {
                    let refused = code(&keys, fields);
                    assert_eq!(refused, Some(ErrorCode::InvalidRequest), "{fields:?}");
                }
            }
        }
    }

    #[test]
    #[contract("S14")]
    fn a_key_that_is_switched_off_or_has_expired_gets_the_reply_of_an_unknown_one() {
        let entry = |name: &str| TenantEntry {
            key: Some(Secret::new(name)),
            ..TenantEntry::named(name)
        };
        let (mut off, mut old) = (entry("off"), entry("old"));
        off.enabled = false;
        old.expires_at = Some("1970-01-01T00:00:00Z".to_owned());
        let section = TenantsSection {
            api_keys: vec![entry("right"), off, old],
            ..TenantsSection::default()
        };
        let keys = Tenants::new(&section, TenantSecrets::default());
        let refusal = |key: &'static [u8]| {
            let admitted = admit(&keys.table(), &headers(&[("x-api-key", key)]), CHAT, AT);
            admitted.err().map(|error| format!("{error:?}"))
        };
        assert_eq!(refusal(b"right"), None);
        let unknown = refusal(b"never one");
        assert!(unknown.is_some());
        assert_eq!(
            [refusal(b"off"), refusal(b"old")],
            [unknown.clone(), unknown]
        );
    }
}
