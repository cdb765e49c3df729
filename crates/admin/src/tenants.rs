//! `GET /admin/tenants`.

use std::sync::Arc;

use ::tenants::{Tenant, Tenants};
use api::{TenantReport, TenantReports};
use axum::{
    extract::{Query, State},
    response::Response,
};
use routing::Router;
use serde::Deserialize;

use crate::{list_limit::list_limit, response};

/// Which tenants are listed.
#[derive(Debug, Deserialize)]
pub(crate) struct TenantsQuery {
    limit: Option<String>,
    /// Only the one with this name.
    name: Option<String>,
}

pub(crate) async fn list(
    State(tenants): State<Arc<Tenants>>,
    State(router): State<Arc<Router>>,
    Query(narrow): Query<TenantsQuery>,
) -> Response {
    let limit = match list_limit(narrow.limit.as_deref()) {
        Ok(limit) => limit,
        Err(error) => return response::error(&error),
    };
    let table = tenants.table();
    let is_listed = |tenant: &&Arc<Tenant>| {
        let name = narrow.name.as_deref();
        name.is_none_or(|name| **tenant.name() == *name)
    };
    let tenants = table.tenants();
    let listed = tenants.iter().filter(is_listed).take(limit);
    response::json(&TenantReports {
        tenants: listed
            .map(|tenant| report(tenant, router.queued_requests_of(tenant.name()) as u64))
            .collect(),
    })
}

fn report(tenant: &Tenant, queued: u64) -> TenantReport {
    let counts = tenant.counts();
    TenantReport {
        name: Arc::clone(tenant.name()),
        enabled: tenant.is_enabled(),
        in_flight: counts.in_flight,
        queued,
        requests: counts.requests,
        limited: counts.limited(),
        prompt_tokens: counts.prompt_tokens,
        cached_tokens: counts.cached_tokens,
        completion_tokens: counts.completion_tokens,
        errors: counts.errors,
        metadata: tenant
            .metadata()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    }
}
