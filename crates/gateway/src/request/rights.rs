//! What a tenant may ask for in a body: models, adapters, fields that override decisions, and
//! fields that control engines.
//!
//! Checked in one walk of the body as the client sent it, before hooks and rules replace names.

use std::sync::Arc;

use dialect::ApiError;
use tenants::{EngineField, Scope, Tenant};

use crate::{
    errors,
    routes::{Route, RouteHandler},
};

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

/// Returns whether a tenant may send a field of KV transfer, by its path in the body. Fields that
/// only engines send each other are no one's.
pub(super) fn may_send_transfer_field(tenant: Option<&Tenant>, path: &str) -> bool {
    let name = path.rsplit('.').next().unwrap_or(path);
    tenant
        .zip(EngineField::named(name))
        .is_some_and(|(tenant, field)| tenant.may_send(field))
}

/// Returns the fields that the tenant may not send on a route. Those of KV transfer are not among
/// them: they stand in several places of a body, and a later stage finds them.
fn refused_fields(tenant: &Tenant, route: &Route) -> Vec<&'static str> {
    if is_of_route(route) {
        if may_override(Some(tenant)) {
            return Vec::new();
        }
        return OF_ROUTE.to_vec();
    }
    let is_refused = |field: &EngineField| !field.is_of_transfer() && !tenant.may_send(*field);
    let refused = EngineField::ALL.into_iter().filter(is_refused);
    refused.map(EngineField::as_str).collect()
}

/// Returns whether a route has bodies for the router itself.
fn is_of_route(route: &Route) -> bool {
    matches!(
        route.endpoint,
        RouteHandler::Route | RouteHandler::PotentialLoads
    )
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
    let (all_models, refused) = (tenant.models().is_all(), refused_fields(tenant, route));
    if all_models && refused.is_empty() {
        return Ok(());
    }
    let claims = dialect::claims(body, &refused);
    if let Some(field) = claims.field {
        return Err(if is_of_route(route) {
            errors::override_not_allowed(field)
        } else {
            errors::engine_field_not_allowed(field)
        });
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
    use dialect::{Dialect, ErrorCode};
    use http::Method;
    use tenants::{KeyVerdict, TenantEntry, TenantSecrets, Tenants, TenantsSection};

    use super::{super::prefill, *};
    use crate::routes::{self, ROUTES, RouteMatch};

    fn entry(name: &str) -> TenantEntry {
        TenantEntry {
            key: Some(Secret::new(name)),
            ..TenantEntry::named(name)
        }
    }

    /// A tenant beside another one.
    fn tenant(models: &[&str], scopes: Vec<Scope>) -> Arc<Tenant> {
        let own = TenantEntry {
            allowed_models: models.iter().map(|name| (*name).to_owned()).collect(),
            scopes,
            ..entry("a")
        };
        first_of(vec![own, entry("b")])
    }

    fn first_of(api_keys: Vec<TenantEntry>) -> Arc<Tenant> {
        let section = TenantsSection {
            api_keys,
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

    /// The fields of row S43, and the ids of requests. `None`: `engine_fields` does not list it.
    const CONTROLLING: [(&str, Option<EngineField>); 18] = [
        ("kv_transfer_params", Some(EngineField::KvTransferParams)),
        ("bootstrap_host", Some(EngineField::BootstrapHost)),
        ("bootstrap_port", Some(EngineField::BootstrapPort)),
        ("bootstrap_room", Some(EngineField::BootstrapRoom)),
        ("ec_transfer_params", Some(EngineField::EcTransferParams)),
        // The tenant's own salt replaces it.
        ("cache_salt", None),
        ("prompt_embeds", Some(EngineField::PromptEmbeds)),
        ("chat_template", Some(EngineField::ChatTemplate)),
        (
            "custom_logit_processor",
            Some(EngineField::CustomLogitProcessor),
        ),
        ("logits_processors", Some(EngineField::LogitsProcessors)),
        // A name of a model: `allowed_models` lists it.
        ("lora_path", None),
        (
            "return_hidden_states",
            Some(EngineField::ReturnHiddenStates),
        ),
        ("data_parallel_rank", Some(EngineField::DataParallelRank)),
        ("routed_dp_rank", Some(EngineField::RoutedDpRank)),
        ("priority", Some(EngineField::Priority)),
        ("mm_processor_kwargs", Some(EngineField::MmProcessorKwargs)),
        ("request_id", Some(EngineField::RequestId)),
        ("rid", Some(EngineField::Rid)),
    ];

    #[test]
    #[contract("S43")]
    fn a_field_that_controls_the_engine_needs_a_permission_where_there_are_other_tenants() {
        let listing = |fields: Vec<EngineField>| TenantEntry {
            engine_fields: fields,
            ..entry("a")
        };
        let alone = first_of(vec![entry("a")]);
        let several = tenant(&[], vec![Scope::Chat]);
        for (name, field) in CONTROLLING {
            let body = format!(r#"{{"model":"m","{name}":"x"}}"#);
            let may_send = |tenant: &Arc<Tenant>| {
                let mut json_routes = ROUTES.iter().filter(|route| {
                    route.body == crate::routes::BodyMode::Limited && !is_of_route(route)
                });
                let view = dialect::view(Dialect::Chat, body.as_bytes()).expect("a good body");
                json_routes.all(|route| refused(tenant, route.path, &body).is_none())
                    && prefill::check_transfer_fields(&view, Some(tenant)).is_ok()
            };
            let is_of_transfer = field.is_some_and(EngineField::is_of_transfer);
            assert_eq!(may_send(&alone), !is_of_transfer, "{name}");
            assert_eq!(may_send(&several), field.is_none(), "{name}");
            if let Some(field) = field {
                let listed = first_of(vec![listing(vec![field]), entry("b")]);
                assert!(may_send(&listed), "{name}");
                let others = EngineField::ALL.into_iter().filter(|other| *other != field);
                let unlisted = first_of(vec![listing(others.collect()), entry("b")]);
                assert!(!may_send(&unlisted), "{name}");
            }
        }
    }

    #[test]
    #[contract("S43")]
    fn a_field_of_transfer_counts_by_its_name_wherever_it_stands() {
        let own = TenantEntry {
            engine_fields: vec![EngineField::KvTransferParams],
            ..entry("a")
        };
        let listed = first_of(vec![own]);
        for (path, allowed) in [
            ("kv_transfer_params", true),
            ("vllm_xargs.kv_transfer_params", true),
            ("sampling_params.extra_args.kv_transfer_params", true),
            ("vllm_xargs.ec_transfer_params", false),
            ("bootstrap_pair_key", false),
            ("disaggregated_params", false),
            ("encoder_urls", false),
        ] {
            assert_eq!(may_send_transfer_field(Some(&listed), path), allowed);
            assert!(!may_send_transfer_field(None, path), "{path}");
        }
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
