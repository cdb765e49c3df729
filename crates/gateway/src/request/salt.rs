//! The salt by which engines keep a tenant's cached blocks apart from those of others.
//!
//! It replaces the client's own salt in the body, before the prompt is tokenized: the block hashes,
//! the sessions and the response cache of the router then keep tenants apart by what the engine
//! gets.

use std::borrow::Cow;

use bytes::Bytes;
use dialect::{ApiError, Dialect, Edit, ErrorCode};
use fleet::{EngineKind, WorkerView};
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
    let host = worker.connection.host.as_bytes();
    if !call.salted || accepts_salt(worker.engine.kind, host) {
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

/// Returns whether a worker accepts a salt. Engines that do not know it ignore it; services refuse
/// members that they do not know.
fn accepts_salt(kind: EngineKind, host: &[u8]) -> bool {
    !is_service(kind, host)
}

/// Returns whether a worker is a service at which the operator has an account, and no server of its
/// own.
pub(super) fn is_service(kind: EngineKind, host: &[u8]) -> bool {
    match kind {
        EngineKind::Azure | EngineKind::Anthropic | EngineKind::Gemini => true,
        EngineKind::Openai => host.ends_with(b"openai.com"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S51")]
    fn every_worker_gets_the_salt_but_services_that_refuse_it() {
        for kind in EngineKind::ALL {
            let refuses = matches!(
                kind,
                EngineKind::Azure | EngineKind::Anthropic | EngineKind::Gemini
            );
            assert_eq!(accepts_salt(kind, b"10.0.0.5:8000"), !refuses, "{kind:?}");
        }
        assert!(!accepts_salt(EngineKind::Openai, b"api.openai.com"));
    }
}
