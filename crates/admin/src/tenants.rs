//! `GET /admin/tenants`.

use std::sync::Arc;

use ::tenants::{Tenant, Tenants};
use api::{TenantReport, TenantReports};
use axum::{extract::State, response::Response};
use routing::Router;

use crate::response;

pub(crate) async fn list(
    State(tenants): State<Arc<Tenants>>,
    State(router): State<Arc<Router>>,
) -> Response {
    let table = tenants.table();
    let tenants = table.tenants();
    response::json(&TenantReports {
        tenants: tenants
            .iter()
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
        limited: counts.rate_limited + counts.concurrency_limited,
        prompt_tokens: counts.prompt_tokens,
        completion_tokens: counts.completion_tokens,
        errors: counts.errors,
        metadata: tenant
            .metadata()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
    }
}
