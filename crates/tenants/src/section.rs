//! Section `tenants`.

use std::{collections::BTreeMap, num::NonZeroU32};

use settings::{Range, Secret, ValueKind};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Requests per second.
const RATE: ValueKind = ValueKind::Float(Range {
    min: 0.0,
    max: 1e6,
    open: true,
});

/// Weights.
const WEIGHT: ValueKind = ValueKind::Float(Range {
    min: 0.001,
    max: 1000.0,
    open: false,
});

/// Priorities; there is no kind for whole numbers below 0.
const PRIORITY: ValueKind = ValueKind::Float(Range {
    min: -100.0,
    max: 100.0,
    open: false,
});

settings::section! {
    /// Section `tenants`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct TenantsSection {
        /// Rules of tenants that do not set their own.
        defaults: TenantDefaults, live;
        /// Tenants, each with its key (top-level alias `api_keys`). Empty: the key of `--api-key` is
        /// required, if there is one. Otherwise only these keys are accepted.
        api_keys: Vec<TenantEntry> = "[]", live;
    }
}

settings::section! {
    /// Section `tenants.defaults`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TenantDefaults {
        /// Allow every tenant to override decisions with `x-warmroute-*` request headers. `false`:
        /// only the tenants with scope `overrides`, and a tenant that is the only one.
        overrides: bool = "false", live;
        /// Maximum number of a tenant's requests that wait for a worker; beyond it: 429.
        queued: NonZeroU32 = "64", live;
    }
}

settings::section! {
    /// A tenant.
    #[derive(Clone, Debug, PartialEq)]
    pub optional struct TenantEntry {
        /// Name of the tenant in receipts, logs and metrics. Required, unique.
        name: String = "~", live;
        /// Key that its clients send. Required, unless `key_sha256` is set.
        key: Option<Secret> = "~", live;
        /// SHA-256 of the key in hexadecimal, in place of the key.
        key_sha256: Option<Secret> = "~", live;
        /// Routes that it may use, and `overrides` of decisions by request headers; others: 403.
        scopes: Vec<Scope> = "[chat, embeddings, media, tokenize, route, models]", live;
        /// Models that its requests may name; a `*` at the end stands for any text. Empty: all.
        allowed_models: Vec<String> = "[]", live;
        /// Requests per second, of which one second's worth may arrive at once; beyond it: 429.
        /// Unset: no limit.
        rate_limit_rps: Option<f64> = "~" in RATE, live;
        /// Maximum number of requests that run at the same time; beyond it: 429. Unset: no limit.
        max_concurrent: Option<NonZeroU32> = "~", live;
        /// Its share of the workers while other tenants wait for them too, compared with their weights.
        weight: f64 = "1" in WEIGHT, live;
        /// Priority of its requests, a whole number: those of a higher one go first while they wait.
        priority: f64 = "0" in PRIORITY, live;
        /// Time from which the key is refused, as in `2027-01-31T00:00:00Z`.
        expires_at: Option<String> = "~", live;
        /// Accept the key.
        enabled: bool = "true", live;
        /// Notes of the operator, shown by `GET /admin/tenants`.
        metadata: BTreeMap<String, String> = "{}", live;
    }
}

settings::words! {
    /// A part of the API that a tenant may use.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Scope {
        /// Chats, completions, messages and responses.
        Chat = "chat",
        /// Embeddings, scores and ranks.
        Embeddings = "embeddings",
        /// Sound and pictures.
        Media = "media",
        /// Tokens of texts, and their counts.
        Tokenize = "tokenize",
        /// Decisions without a request.
        Route = "route",
        /// Lists of models.
        Models = "models",
        /// Overrides of decisions.
        Overrides = "overrides",
    }
}

/// Reads `expires_at`: seconds since 1970.
pub fn expiry(text: &str) -> Option<i64> {
    let at = OffsetDateTime::parse(text.trim(), &Rfc3339).ok()?;
    Some(at.unix_timestamp())
}
