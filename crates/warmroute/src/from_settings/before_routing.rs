//! Settings of the steps before the decision: hooks, model names and lists, and their reply
//! headers.

use config::HookErrorAction;
use gateway::{HookSettings, ModelListSettings, ModelNameRule, ModelNames, ReplyHeaders};

/// Returns the hooks; their URLs were checked with the configuration.
pub(super) fn hooks(hooks: &[config::HookEntry]) -> Vec<HookSettings> {
    let hook = |hook: &config::HookEntry| {
        Some(HookSettings {
            name: hook.name.as_str().into(),
            url: hook.url.parse().ok()?,
            timeout: hook.timeout,
            allow_on_error: hook.on_error == HookErrorAction::Allow,
            reject_status: hook.on_reject.status,
            reject_message: hook.on_reject.message.clone(),
            models: hook.models.clone(),
        })
    };
    hooks.iter().filter_map(hook).collect()
}

/// Returns the model names and rules.
pub(super) fn names(models: &config::ModelsSection) -> ModelNames {
    let rule = |rule: &config::ModelRule| ModelNameRule {
        pattern: rule.pattern.clone(),
        rewrite: rule.rewrite.clone(),
        fallback: rule.fallback.clone(),
    };
    ModelNames {
        rules: models.rules.iter().map(rule).collect(),
        aliases: models
            .aliases
            .iter()
            .map(|(name, model)| (name.clone(), model.clone()))
            .collect(),
    }
}

/// Returns the settings of reply headers.
pub(super) fn headers(compat: &config::CompatSection) -> ReplyHeaders {
    ReplyHeaders {
        expose: compat.expose_routing_headers,
        vllm_router: compat.vllm_router_headers(),
    }
}

/// Returns the lifetimes of model lists.
pub(super) fn model_lists(settings: &config::Settings) -> ModelListSettings {
    let merged = settings.model_aggregation;
    ModelListSettings {
        own_ttl: settings.cache.model_ttl,
        ttl: merged.ttl,
        soft_ratio: merged.soft_ttl_ratio,
        empty_ttl: merged.empty_ttl,
        empty_max_ttl: merged.empty_max_ttl,
        background: merged.background(),
    }
}
