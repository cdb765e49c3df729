//! What a tenant may ask for in a body: models, adapters, and fields that override decisions.
//!
//! Checked in one walk of the body as the client sent it, before hooks and rules replace names.

use std::sync::Arc;

use dialect::ApiError;
use tenants::{Scope, Tenant};

use crate::{
    errors,
    routes::{Route, RouteHandler},
};

/// Fields by which a body overrides what the engine decides: its order, its rank, and the id by
/// which it tells requests apart.
const AT_ENGINES: [&str; 5] = [
    "priority",
    "data_parallel_rank",
    "routed_dp_rank",
    "request_id",
    "rid",
];
/// Fields by which a body of `/v1/route` overrides the decision.
const OF_ROUTE: [&str; 5] = [
    "worker",
    "policy",
    "exclude",
    "priority",
    "router_config_override",
];

/// Returns whether a tenant may override decisions.
pub(super) fn may_override(tenant: Option<&Tenant>) -> bool {
    tenant.is_none_or(|tenant| tenant.has_scope(Scope::Overrides))
}

/// Checks that the tenant may use the model that its request names. Other names that rules or
/// hooks give to it later are the operator's choice.
pub(super) fn check_model(tenant: Option<&Tenant>, named: &str) -> Result<(), ApiError> {
    if tenant.is_none_or(|tenant| tenant.models().has(named)) {
        return Ok(());
    }
    Err(errors::model_not_allowed(named))
}

/// Checks a JSON body. `only_model`: the model of a body that names none.
pub(super) fn check_body(
    tenant: &Tenant,
    route: &Route,
    body: &[u8],
    only_model: impl FnOnce() -> Option<Arc<str>>,
) -> Result<(), ApiError> {
    let (all_models, overrides) = (tenant.models().is_all(), may_override(Some(tenant)));
    if all_models && overrides {
        return Ok(());
    }
    let fields = match route.endpoint {
        RouteHandler::Route | RouteHandler::PotentialLoads => &OF_ROUTE,
        _ => &AT_ENGINES,
    };
    let claims = dialect::claims(body, if overrides { &[] } else { fields });
    if let Some(field) = claims.field {
        return Err(errors::override_not_allowed(field));
    }
    if all_models {
        return Ok(());
    }
    if let Some(field) = claims.unnamed_adapter {
        return Err(errors::adapter_not_named(field));
    }
    if claims.models.is_empty() {
        let only = only_model().ok_or_else(errors::model_not_named)?;
        return check_model(Some(tenant), &only);
    }
    let mut models = claims.models.iter();
    models.try_for_each(|named| check_model(Some(tenant), named))
}

#[cfg(test)]
mod tests {
    use config::Secret;
    use contract_id::contract;
    use dialect::ErrorCode;
    use http::Method;
    use tenants::{KeyVerdict, TenantEntry, TenantSecrets, Tenants, TenantsSection};

    use super::*;
    use crate::routes::{self, RouteMatch};

    /// A tenant beside another one.
    fn tenant(models: &[&str], scopes: Vec<Scope>) -> Arc<Tenant> {
        let entry = |name: &str| TenantEntry {
            key: Some(Secret::new(name)),
            allowed_models: models.iter().map(|name| (*name).to_owned()).collect(),
            scopes: scopes.clone(),
            ..TenantEntry::named(name)
        };
        let section = TenantsSection {
            api_keys: vec![entry("a"), entry("b")],
            ..TenantsSection::default()
        };
        let tenants = Tenants::new(&section, TenantSecrets::default());
        match tenants.table().verdict(Some(b"a"), 0) {
            KeyVerdict::Tenant(tenant) => Arc::clone(tenant),
            other => panic!("{other:?}"),
        }
    }

    fn refused(tenant: &Tenant, path: &str, body: &str) -> Option<(ErrorCode, String)> {
        let RouteMatch::Route(route) = routes::find(&Method::POST, path) else {
            panic!("{path}");
        };
        let only = || Some(Arc::from("only"));
        let error = check_body(tenant, route, body.as_bytes(), only).err()?;
        let field = error.param.as_deref().unwrap_or_default();
        Some((error.code, field.to_owned()))
    }

    fn expected(code: ErrorCode, field: &str) -> Option<(ErrorCode, String)> {
        Some((code, field.to_owned()))
    }

    #[test]
    #[contract("V31", "V34")]
    fn every_name_in_a_body_must_be_allowed() {
        let some = tenant(&["free", "only"], vec![Scope::Chat, Scope::Overrides]);
        let denied = expected(ErrorCode::ModelNotAllowed, "model");
        for (body, refusal) in [
            (r#"{"model":"free"}"#, None),
            (r#"{"model":"paid"}"#, denied.clone()),
            (r#"{"model":"free","lora_path":"paid"}"#, denied.clone()),
            (
                r#"{"model":"free","lora_path":["free","paid"]}"#,
                denied.clone(),
            ),
            (r#"{"model":"free","model":"paid"}"#, denied.clone()),
            (
                r#"{"model":"free","lora_request":{"lora_path":"/x"}}"#,
                expected(ErrorCode::FieldNotAllowed, "lora_request"),
            ),
            (r#"{"text":"x"}"#, None),
            (r#"{"model":"free","priority":3}"#, None),
        ] {
            for path in ["/generate", "/v1/chat/completions", "/v1/messages"] {
                assert_eq!(refused(&some, path, body), refusal, "{path} {body}");
            }
        }
        let other = tenant(&["free"], vec![Scope::Overrides]);
        assert_eq!(refused(&other, "/generate", r#"{"text":"x"}"#), denied);
    }

    #[test]
    #[contract("V31", "S43")]
    fn a_field_that_overrides_a_decision_needs_the_scope() {
        let plain = tenant(&[], vec![Scope::Chat, Scope::Route]);
        let granted = tenant(&[], vec![Scope::Chat, Scope::Overrides]);
        for (path, field, refuses) in [
            ("/v1/chat/completions", "priority", true),
            ("/v1/responses", "request_id", true),
            ("/generate", "rid", true),
            ("/generate", "routed_dp_rank", true),
            ("/v1/completions", "data_parallel_rank", true),
            ("/v1/completions", "worker", false),
            ("/v1/route", "exclude", true),
            ("/v1/route", "worker", true),
            ("/v1/route", "router_config_override", true),
            ("/v1/route", "request_id", false),
            ("/v1/route/potential_loads", "policy", true),
        ] {
            let body = format!(r#"{{"model":"m","{field}":1}}"#);
            let refusal = expected(ErrorCode::FieldNotAllowed, field).filter(|_| refuses);
            assert_eq!(refused(&plain, path, &body), refusal, "{path} {field}");
            assert_eq!(refused(&granted, path, &body), None, "{path} {field}");
            let absent = format!(r#"{{"model":"m","{field}":null}}"#);
            assert_eq!(refused(&plain, path, &absent), None, "{path} {field}");
        }
    }
}
