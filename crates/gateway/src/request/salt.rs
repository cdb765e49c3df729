//! The salt by which engines keep a tenant's cached blocks apart from those of others.
//!
//! It replaces the client's own salt in the body, before the prompt is tokenized: the block hashes,
//! the sessions and the response cache of the router then keep tenants apart by what the engine
//! gets.

use std::borrow::Cow;

use bytes::Bytes;
use dialect::{ApiError, Dialect, Edit, ErrorCode};
use fleet::EngineKind;
use tenants::Tenant;

use super::accept::AcceptedRequest;
use crate::routes::{Route, RouteHandler};

/// The entry in the rewrites header for a salt.
pub(super) const SALT: &str = "salt";

/// The members of a body that salt the blocks: the one that is set, and one that is removed.
struct SaltMembers {
    set: &'static str,
    removed: Option<&'static str>,
}

impl SaltMembers {
    /// `None`: the route computes no blocks.
    fn of(route: &Route) -> Option<Self> {
        let set = match route.endpoint {
            RouteHandler::Generate(Dialect::SglangGenerate)
            | RouteHandler::GenerateAnew(Dialect::SglangGenerate) => {
                return Some(Self {
                    set: "extra_key",
                    removed: Some("cache_salt"),
                });
            }
            RouteHandler::Generate(_)
            | RouteHandler::GenerateAnew(_)
            | RouteHandler::Route
            | RouteHandler::PotentialLoads => "cache_salt",
            _ => return None,
        };
        Some(Self { set, removed: None })
    }

    /// Returns the client's own salts as they stand in the body.
    fn of_client(&self, body: &[u8]) -> Option<String> {
        let names = [Some(self.set), self.removed];
        let names = names.into_iter().flatten();
        let found: Vec<String> = names
            .filter_map(|name| dialect::raw_member(body, name))
            .collect();
        (!found.is_empty()).then(|| found.join(","))
    }
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
    let Some(members) = SaltMembers::of(route) else {
        return Ok(false);
    };
    let client = members.of_client(call.body.bytes());
    let Some(salt) = tenant.cache_salt(client.as_deref()) else {
        return Ok(false);
    };
    // Its alphabet needs no escapes.
    let json = format!("\"{salt}\"");
    let edits = [
        Some(Edit::Set(members.set, &json)),
        members.removed.map(Edit::Remove),
    ];
    let edits: Vec<Edit<'_>> = edits.into_iter().flatten().collect();
    let body = dialect::splice(call.body.bytes(), &edits).map_err(|error| {
        let message = format!("the body is not one JSON object: {error}");
        ApiError::new(ErrorCode::InvalidJson, message)
    })?;
    call.body.replace(body.into());
    call.salted = true;
    Ok(true)
}

/// Returns the request as engines of this kind accept it: without a salt that they do not know.
pub(super) fn for_engine(
    call: Cow<'_, AcceptedRequest>,
    kind: EngineKind,
) -> Cow<'_, AcceptedRequest> {
    if !call.salted || is_known_to(kind) {
        return call;
    }
    let edits = [Edit::Remove("cache_salt"), Edit::Remove("extra_key")];
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

/// Returns whether engines of this kind know the member. The others refuse unknown members, or have
/// no cache that other requests reach.
fn is_known_to(kind: EngineKind) -> bool {
    !matches!(
        kind,
        EngineKind::Openai | EngineKind::Azure | EngineKind::Anthropic
    )
}
