//! The salt by which engines keep a tenant's cached blocks apart from those of others.
//!
//! It replaces the client's own salt in the body, before the prompt is tokenized: the block hashes,
//! the sessions and the response cache of the router then keep tenants apart by what the engine
//! gets.

use std::borrow::Cow;

use bytes::Bytes;
use dialect::{ApiError, Dialect, Edit, ErrorCode};
use fleet::{SaltHandling, WorkerView};
use tenants::Tenant;

use super::accept::AcceptedRequest;
use crate::{
    errors,
    routes::{Route, RouteHandler},
};

/// The entry in the rewrites header for a salt.
pub(super) const SALT: &str = "salt";

/// The members of a body that salt the blocks. SGLang reads the second one behind the first, and on
/// its own route only the second.
const MEMBERS: [&str; 2] = ["cache_salt", "extra_key"];
/// vLLM computes beams without the salt.
const BEAMS: &str = "use_beam_search";

/// Returns the member of [`MEMBERS`] that is set; `None`: the route computes no blocks.
fn set_member(route: &Route) -> Option<usize> {
    match route.endpoint {
        RouteHandler::Generate(Dialect::SglangGenerate)
        | RouteHandler::GenerateAnew(Dialect::SglangGenerate) => Some(1),
        RouteHandler::Generate(_)
        | RouteHandler::GenerateAnew(_)
        | RouteHandler::Route
        | RouteHandler::PotentialLoads => Some(0),
        _ => None,
    }
}

/// Checks that the requests of a route carry a salt, or that the tenant needs none there. What a
/// form or a conversation makes an engine cache is under no salt.
pub(super) fn check_route(tenant: &Tenant, route: &Route) -> Result<(), ApiError> {
    let what = match route.endpoint {
        RouteHandler::Form => "forms (sound and pictures)",
        RouteHandler::Realtime => "conversations over WebSocket",
        _ => return Ok(()),
    };
    if tenant.is_strictly_isolated() {
        return Err(errors::carries_no_salt(what));
    }
    Ok(())
}

/// Returns the client's own salts as they stand in the body.
fn salt_of_client(body: &[u8]) -> Option<String> {
    let own = MEMBERS.map(|name| dialect::raw_member(body, name));
    let is_there = own.iter().any(Option::is_some);
    is_there.then(|| own.map(Option::unwrap_or_default).join(","))
}

/// Sets the tenant's salt in the body. Returns whether it did: an only tenant has none, and not
/// every route computes blocks.
///
/// # Errors
///
/// The body has no place for it; it is never sent without.
pub(super) fn add(
    tenant: &Tenant,
    route: &Route,
    call: &mut AcceptedRequest,
) -> Result<bool, ApiError> {
    // Most routers have one tenant: its bodies are not searched.
    let Some(set) = set_member(route).filter(|_| tenant.is_salted()) else {
        return Ok(false);
    };
    let body = call.body.bytes();
    let Some(salt) = tenant.cache_salt(salt_of_client(body).as_deref()) else {
        return Ok(false);
    };
    if dialect::raw_member(body, BEAMS).is_some_and(|value| value != "false") {
        return Err(errors::not_isolated(BEAMS));
    }
    // Its alphabet needs no escapes.
    let json = format!("\"{salt}\"");
    let edits = [
        Edit::Set(MEMBERS[set], &json),
        Edit::Remove(MEMBERS[1 - set]),
        // Also under a name with escapes.
        Edit::Remove(BEAMS),
    ];
    let body = dialect::splice(body, &edits).map_err(|error| {
        let message = format!("the body is not one JSON object: {error}");
        ApiError::new(ErrorCode::InvalidJson, message)
    })?;
    call.body.replace(body.into());
    call.salted = true;
    Ok(true)
}

/// Returns the request as this worker accepts it: without a salt that it would refuse.
pub(super) fn for_worker<'c>(
    call: Cow<'c, AcceptedRequest>,
    worker: &WorkerView,
) -> Cow<'c, AcceptedRequest> {
    if !call.salted || worker.salt_handling() != SaltHandling::Refuses {
        return call;
    }
    let edits = MEMBERS.map(Edit::Remove);
    match dialect::splice(call.body.bytes(), &edits) {
        Ok(body) => {
            let mut call = call.into_owned();
            call.body.replace(Bytes::from(body));
            Cow::Owned(call)
        }
        // It had an object's body when the salt was set.
        Err(_) => call,
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use tenants::Isolation;

    use super::*;
    use crate::{request::test_support, routes::ROUTES};

    #[test]
    #[contract("S53")]
    fn under_strict_isolation_a_request_without_a_salt_is_refused_and_no_other() {
        let strict = test_support::tenant_beside_another(Isolation::Strict);
        let salted = test_support::tenant_beside_another(Isolation::Salted);
        for route in ROUTES {
            let has_none = [
                "/v1/audio/trans",
                "/v1/images/edits",
                "/v1/images/variations",
            ]
            .iter()
            .any(|path| route.path.starts_with(path))
                || route.path == "/v1/realtime";
            let checked = check_route(&strict, route).map_err(|error| error.code);
            let expected = if has_none {
                Err(ErrorCode::FieldNotAllowed)
            } else {
                Ok(())
            };
            assert_eq!(checked, expected, "{}", route.path);
            assert!(check_route(&salted, route).is_ok(), "{}", route.path);
        }
    }
}
