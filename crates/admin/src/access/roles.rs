//! The role that each call needs: by the list of operations, and by what its query asks for.

use std::{collections::HashMap, sync::LazyLock};

use api::openapi::{Role, operations};
use axum::http::{Method, Uri};
use dialect::{ApiError, ErrorCode};

use super::Operator;
use crate::{doctor, kv_events};

/// The role of each method of each path.
static ROLES: LazyLock<HashMap<(&str, &str), Role>> = LazyLock::new(|| {
    let all = operations().into_iter();
    all.filter_map(|operation| Some(((operation.path, operation.method), operation.role?)))
        .collect()
});

/// Returns the role that a call of a route needs. A call that is not listed needs the last one.
pub(super) fn needed(method: &Method, route: &str, uri: &Uri) -> Role {
    let method = match *method {
        Method::HEAD => Method::GET.as_str(),
        ref method => method.as_str(),
    };
    let listed = *ROLES.get(&(route, method)).unwrap_or(&Role::Admin);
    let by_query = match route {
        "/admin/doctor" => doctor::needed(uri),
        "/v1/kv_events" => kv_events::needed(uri),
        _ => Role::Read,
    };
    listed.max(by_query)
}

/// Checks that an operator has a role.
///
/// # Errors
///
/// Its token allows less.
pub(super) fn check(operator: &Operator, needed: Role) -> Result<(), ApiError> {
    if operator.role >= needed {
        return Ok(());
    }
    let message = format!(
        "the admin token of {} has the role {:?}, and this call needs {:?} (admin.tokens[].role)",
        operator.name,
        operator.role.as_str(),
        needed.as_str()
    );
    Err(ApiError::new(ErrorCode::ScopeMissing, message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use contract_id::contract;

    use super::*;

    /// Calls by another method than GET that change nothing.
    const QUERIES: [&str; 3] = ["POST /query", "POST /query_by_hash", "POST /v1/route"];
    /// Calls that change the running process only.
    const OPERATE: [&str; 6] = [
        "DELETE /admin/response-cache/entries",
        "POST /admin/drain",
        "POST /admin/kv-index/clear",
        "POST /admin/response-cache/invalidate",
        "POST /admin/workers/{name}/drain",
        "POST /admin/workers/{name}/resume",
    ];
    /// Calls that change the configuration, the workers, or which process serves.
    const ADMIN: [&str; 8] = [
        "DELETE /admin/workers/{name}",
        "POST /admin/config/rollback",
        "POST /admin/reload",
        "POST /admin/takeover",
        "POST /admin/workers",
        "POST /register",
        "POST /unregister",
        "PUT /admin/workers/{name}",
    ];

    #[test]
    #[contract("S1", "S3")]
    fn every_call_that_changes_something_needs_more_than_reading() {
        let of = |role: Role| -> BTreeSet<String> {
            let calls = ROLES.iter().filter(|(_, needed)| **needed == role);
            calls
                .map(|((path, method), _)| format!("{method} {path}"))
                .filter(|call| !call.starts_with("GET "))
                .collect()
        };
        assert_eq!(of(Role::Read), QUERIES.map(String::from).into());
        assert_eq!(of(Role::Operate), OPERATE.map(String::from).into());
        assert_eq!(of(Role::Admin), ADMIN.map(String::from).into());
    }

    #[test]
    #[contract("S1")]
    fn a_call_that_is_not_listed_needs_the_last_role() {
        let needed = |method: &Method, route: &'static str| {
            super::needed(method, route, &Uri::from_static(route))
        };
        assert_eq!(needed(&Method::GET, "/admin/workers"), Role::Read);
        assert_eq!(needed(&Method::HEAD, "/admin/workers"), Role::Read);
        for (method, route) in [
            (Method::PATCH, "/admin/workers"),
            (Method::OPTIONS, "/admin/workers"),
            (Method::GET, "/admin/new"),
            (Method::HEAD, "/admin/reload"),
        ] {
            assert_eq!(needed(&method, route), Role::Admin, "{method} {route}");
        }
    }

    #[test]
    #[contract("S11")]
    fn a_query_that_asks_for_more_needs_the_role_of_what_it_does() {
        for (route, query, role) in [
            ("/admin/doctor", "", Role::Read),
            ("/admin/doctor", "?probe=false", Role::Read),
            ("/admin/doctor", "?probe=true", Role::Operate),
            ("/admin/doctor", "?x=1&%70robe=tr%75e", Role::Operate),
            // It is refused: nothing is probed.
            ("/admin/doctor", "?probe=true&probe=true", Role::Read),
            ("/v1/kv_events", "?salts=digest", Role::Read),
            ("/v1/kv_events", "?salts=plain", Role::Admin),
            ("/v1/kv_events", "?worker=a&s%61lts=pl%61in", Role::Admin),
            ("/admin/workers", "?probe=true&salts=plain", Role::Read),
        ] {
            let uri: Uri = format!("{route}{query}").parse().expect("a target");
            for method in [Method::GET, Method::HEAD] {
                assert_eq!(needed(&method, route, &uri), role, "{method} {uri}");
            }
        }
    }

    #[test]
    #[contract("S3")]
    fn a_role_allows_its_calls_and_those_of_the_roles_before_it() {
        let all = [Role::Read, Role::Operate, Role::Admin];
        for (at, role) in all.into_iter().enumerate() {
            let operator = Operator {
                name: "ops".into(),
                role,
                has_token: true,
            };
            for (needed_at, needed) in all.into_iter().enumerate() {
                let checked = check(&operator, needed);
                assert_eq!(checked.is_ok(), needed_at <= at, "{role:?} {needed:?}");
                if let Err(error) = checked {
                    assert_eq!((error.status, error.code), (403, ErrorCode::ScopeMissing));
                    assert!(error.message.contains(needed.as_str()), "{}", error.message);
                }
            }
        }
    }
}
