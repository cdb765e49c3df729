//! Section `tenants`.

use std::{collections::BTreeMap, num::NonZeroU32, path::PathBuf, time::Duration};

use settings::{Range, Secret, Section as _, ValueKind};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::{EngineField, KeyDigest, ListedKeys};

/// Requests per second.
const RATE: ValueKind = ValueKind::Float(Range {
    min: 0.0,
    max: 1e6,
    open: true,
});

/// Times to live.
const TTL: ValueKind = ValueKind::Duration {
    least: Duration::from_secs(1),
};

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
        /// Whether the cached blocks of tenants are kept apart, by a `cache_salt` in their requests,
        /// as soon as there are two tenants. `strict`: only workers that were shown to honour the
        /// salt get requests of tenants, and requests that carry none are refused.
        isolation: Isolation = "salted", live;
        /// Which URLs of pictures, sound, video and files in bodies reach engines, which fetch them:
        /// `any`, those with public addresses and names, or `data:` URLs only. `auto`: `public` as
        /// soon as there are two tenants, else `any`. Others: 403.
        media_urls: MediaUrls = "auto", live;
        /// File with the secret that the salts are derived with, the same for all replicas. Unset:
        /// they are derived from the tenants' names only.
        salt_secret_file: Option<PathBuf> = "~", restart;
        /// Whether replies name the worker, the policy and the decision in `x-warmroute-*` headers.
        expose_headers: HeaderExposure = "auto", live;
        /// File with further entries of `api_keys`, one in JSON on each line, as `warmroute keys`
        /// writes it.
        keys_file: Option<PathBuf> = "~", live;
        /// Services that say whether a client's key is valid, where no keys are configured here.
        key_validation: Vec<KeyValidation> = "[]", restart;
        /// Time for which a key that a service accepted passes; after half of it the service is asked
        /// again meanwhile.
        key_validation_ttl: Duration = "60s" in TTL, restart;
        /// Tenants, each with its key (top-level alias `api_keys`). Empty: the key of `--api-key` is
        /// required, if there is one. Otherwise only these keys are accepted.
        api_keys: Vec<TenantEntry> = "[]", live;
    } with {
        /// The entries of the file.
        pub listed: ListedKeys;
    }
}

settings::section! {
    /// Section `tenants.defaults`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct TenantDefaults {
        /// Allow every tenant to override decisions with `x-warmroute-*` request headers. `false`:
        /// only the tenants with scope `overrides`, and a tenant that is the only one.
        overrides: bool = "false", live;
        /// Maximum number of a tenant's replies that stream at the same time; beyond it: 429.
        streams: NonZeroU32 = "256", live;
        /// Maximum number of a tenant's requests that wait for a worker; beyond it: 429.
        queued: NonZeroU32 = "64", live;
    }
}

settings::section! {
    /// A service that validates keys: a GET with the key as `Authorization: Bearer`, whose status says
    /// whether it is valid (200) or not (401, 403).
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub optional struct KeyValidation {
        /// URL of the service, with its path. Required.
        url: String = "~" in ValueKind::WorkerUrl, restart;
        /// Time limit of one question.
        timeout: Duration = "1s", restart;
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
        /// Fields for engines that its bodies may have although there are other tenants, beside those
        /// of scope `overrides`; others: 403.
        engine_fields: Vec<EngineField> = "[]", live;
        /// Requests per second, of which one second's worth may arrive at once; beyond it: 429.
        /// Unset: no limit.
        rate_limit_rps: Option<f64> = "~" in RATE, live;
        /// Maximum number of requests that run at the same time; beyond it: 429. Unset: no limit.
        max_concurrent: Option<NonZeroU32> = "~", live;
        /// Tokens of its prompts per minute, of which one minute's worth may arrive at once; beyond
        /// it: 429. Unset: no limit.
        prompt_tokens_per_minute: Option<NonZeroU32> = "~", live;
        /// Tokens of its replies per minute, of which one minute's worth may arrive at once; beyond
        /// it: 429. Unset: no limit.
        output_tokens_per_minute: Option<NonZeroU32> = "~", live;
        /// Its share of the workers while other tenants wait for them too, compared with their weights.
        weight: f64 = "1" in WEIGHT, live;
        /// Priority of its requests, a whole number: those of a higher one go first while they wait.
        priority: f64 = "0" in PRIORITY, live;
        /// Target for the time to first token of its requests that name none, in place of
        /// `routing.slo.ttft`.
        slo_ttft: Option<Duration> = "~", live;
        /// Target for the mean time between the later tokens of its replies, in place of
        /// `routing.slo.tpot`.
        slo_tpot: Option<Duration> = "~", live;
        /// Time from which the key is refused, as in `2027-01-31T00:00:00Z`.
        expires_at: Option<String> = "~", live;
        /// Accept the key.
        enabled: bool = "true", live;
        /// Notes of the operator, shown by `GET /admin/tenants`.
        metadata: BTreeMap<String, String> = "{}", live;
    }
}

impl TenantEntry {
    /// Replaces the key by its digest.
    pub fn hash_key(&mut self) {
        if let Some(key) = self.key.take() {
            let digest = KeyDigest::of(key.expose().as_bytes());
            self.key_sha256 = Some(Secret::new(digest.to_hex()));
        }
    }

    /// Returns an entry with this name and without a key, otherwise of the default values.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            key: None,
            key_sha256: None,
            scopes: settings::default_value(Self::KEYS, "scopes"),
            allowed_models: Vec::new(),
            engine_fields: Vec::new(),
            rate_limit_rps: None,
            max_concurrent: None,
            prompt_tokens_per_minute: None,
            output_tokens_per_minute: None,
            weight: 1.0,
            priority: 0.0,
            slo_ttft: None,
            slo_tpot: None,
            expires_at: None,
            enabled: true,
            metadata: BTreeMap::new(),
        }
    }
}

impl TenantsSection {
    /// Returns whether the configuration says whose keys are accepted, be it no one's.
    pub fn lists_keys(&self) -> bool {
        !self.api_keys.is_empty() || self.keys_file.is_some()
    }

    /// Returns whether only engines that honour the salt may get requests of several tenants.
    pub fn is_strict(&self) -> bool {
        self.isolation == Isolation::Strict
    }

    /// Returns whether clients are several tenants: entries of two names, or the keys that services
    /// validate, each of which is a tenant.
    pub fn has_several(&self) -> bool {
        if !self.lists_keys() {
            return !self.key_validation.is_empty();
        }
        let own = self.api_keys.iter().map(|entry| entry.name.as_str());
        let listed = self.listed.entries().iter().map(|entry| &**entry.name());
        let mut names = own.chain(listed);
        let first = names.next();
        names.any(|name| Some(name) != first)
    }

    /// Returns which URLs of media pass from a tenant, which is alone or has others beside it.
    pub(crate) fn media_urls_of(&self, is_alone: bool) -> MediaUrlRule {
        match self.media_urls {
            MediaUrls::Auto if is_alone => MediaUrlRule::Any,
            MediaUrls::Any => MediaUrlRule::Any,
            MediaUrls::Auto | MediaUrls::Public => MediaUrlRule::Public,
            MediaUrls::Data => MediaUrlRule::Data,
        }
    }

    /// Replaces every key by its digest, so that the settings hold no key.
    pub fn hash_keys(&mut self) {
        self.api_keys.iter_mut().for_each(TenantEntry::hash_key);
    }
}

settings::words! {
    /// Whether cached blocks of tenants are kept apart.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Isolation {
        /// By a salt of each tenant.
        Salted = "salted",
        /// The same; engines that are not shown to honour it get no requests of tenants.
        Strict = "strict",
        /// Tenants share the blocks of equal prompts.
        Shared = "shared",
    }
}

settings::words! {
    /// Which URLs of media reach engines.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MediaUrls {
        /// All of an only tenant, public ones where there are others.
        Auto = "auto",
        /// All.
        Any = "any",
        /// Those with public addresses and names.
        Public = "public",
        /// Those that are the content itself.
        Data = "data",
    }
}

/// Which URLs of media pass from one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaUrlRule {
    /// All.
    Any,
    /// Those with public addresses and names, and those that are the content itself.
    Public,
    /// Those that are the content itself.
    Data,
}

settings::words! {
    /// Whether replies tell of the decision.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum HeaderExposure {
        /// Only to a tenant without others.
        Auto = "auto",
        /// To every client.
        Always = "always",
        /// To no client.
        Never = "never",
    }
}

settings::words! {
    /// A part of the API that a tenant may use.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
