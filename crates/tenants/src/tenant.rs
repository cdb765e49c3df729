//! A tenant: its rules, and the permit of one of its requests.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use kv_blocks::Moment;

use crate::{
    AllowedModels, EngineField, EntryRules, HeaderExposure, Isolation, KeyEntry, MediaUrlRule,
    ReportedTokens, RouterCount, SaltSecret, Scope, TenantCounts, TenantPlace, TenantsSection,
    TokenAmounts, TokensRefused,
    engine_fields::EngineFieldSet,
    key_entry::EntryMetadata,
    limits::TenantLimits,
    state::{NamedState, StreamPlace, TenantState},
};

/// A tenant with one of its keys, and its running state.
#[derive(Debug)]
pub struct Tenant {
    name: Arc<str>,
    /// Shared by the tenants of a configuration whose entries say the same.
    rules: Arc<TenantRules>,
    /// Seconds since 1970.
    expires_at: Option<i64>,
    enabled: bool,
    /// `None`: there is none.
    metadata: Option<Arc<EntryMetadata>>,
    state: Arc<TenantState>,
}

/// The part of a tenant that depends neither on its name nor on one of its keys.
#[derive(Debug)]
pub(crate) struct TenantRules {
    rights: TenantRights,
    limits: TenantLimits,
    /// How many routers share the limits.
    routers: RouterCount,
    queue: QueueShare,
    /// No other tenant is configured.
    is_alone: bool,
    /// Replies tell of the decision.
    sees_decisions: bool,
    /// Whether its cached blocks are kept apart from those of others: where an engine honours the
    /// salt, or everywhere, as other engines get no requests.
    isolation: Isolation,
    /// What salts are derived with.
    secret: SaltSecret,
}

/// What the requests of a tenant may ask for.
#[derive(Debug)]
struct TenantRights {
    scopes: ScopeSet,
    models: AllowedModels,
    fields: EngineFieldSet,
    media_urls: MediaUrlRule,
}

/// What a tenant's rights depend on beside its entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TenantContext<'a> {
    /// No other tenant is configured. Such a tenant may override decisions without the scope.
    pub(crate) is_alone: bool,
    /// So may every tenant.
    pub(crate) may_override: bool,
    /// Replies tell of the decision.
    pub(crate) sees_decisions: bool,
    /// How its cached blocks are kept apart; of a tenant without others not at all.
    pub(crate) isolation: Isolation,
    pub(crate) secret: &'a SaltSecret,
    /// Which URLs of media pass.
    pub(crate) media_urls: MediaUrlRule,
    /// Most of its requests that wait for a worker.
    pub(crate) queued: NonZeroU32,
    /// Most of its replies that stream at the same time.
    pub(crate) streams: NonZeroU32,
    /// How many routers share the limits.
    pub(crate) routers: &'a RouterCount,
}

impl<'a> TenantContext<'a> {
    /// Returns what the section gives a tenant, which is alone or has others beside it.
    pub(crate) fn of(
        section: &TenantsSection,
        is_alone: bool,
        secret: &'a SaltSecret,
        routers: &'a RouterCount,
    ) -> Self {
        Self {
            is_alone,
            may_override: section.defaults.overrides,
            sees_decisions: match section.expose_headers {
                HeaderExposure::Auto => is_alone,
                HeaderExposure::Always => true,
                HeaderExposure::Never => false,
            },
            isolation: if is_alone {
                Isolation::Shared
            } else {
                section.isolation
            },
            secret,
            media_urls: section.media_urls_of(is_alone),
            queued: section.defaults.queued,
            streams: section.defaults.streams,
            routers,
        }
    }
}

/// What a tenant gets while its requests wait for a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueShare {
    /// Its share, compared with the weights of others.
    pub weight: f64,
    /// Priority of its requests that name none.
    pub priority: i32,
    /// Most requests that wait; `None`: no limit.
    pub most_queued: Option<NonZeroU32>,
    /// Target for the time to first token of its requests that name none; `None`: as for all.
    pub slo_ttft: Option<Duration>,
    /// Target for the mean time between later tokens.
    pub slo_tpot: Option<Duration>,
}

/// Why a request of a known tenant is not let in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Refusal {
    /// It may not use the route.
    ScopeMissing(Scope),
    /// Too many requests per second.
    RateLimited {
        /// The limit.
        per_second: f64,
        /// Time until a request passes.
        wait: Duration,
    },
    /// Too many requests at the same time.
    ConcurrencyLimited {
        /// The limit.
        most: u32,
    },
    /// Too many replies that stream at the same time.
    StreamsLimited {
        /// The limit.
        most: u32,
    },
    /// Too many tokens per minute.
    TokensLimited(TokensRefused),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScopeSet(u8);

impl ScopeSet {
    const ALL: Self = Self(u8::MAX);

    fn of(scopes: &[Scope]) -> Self {
        Self(scopes.iter().fold(0, |set, scope| set | bit(*scope)))
    }

    fn has(self, scope: Scope) -> bool {
        self.0 & bit(scope) != 0
    }
}

fn bit(scope: Scope) -> u8 {
    1 << scope as u8
}

impl TenantRules {
    /// Returns the rules that an entry gives its tenant.
    pub(crate) fn of(entry: &EntryRules, context: TenantContext<'_>) -> Self {
        let mut scopes = ScopeSet::of(&entry.scopes);
        if context.is_alone || context.may_override {
            scopes.0 |= bit(Scope::Overrides);
        }
        let models = entry.allowed_models.iter().map(|model| &**model);
        let may_override = scopes.has(Scope::Overrides);
        let fields = &entry.engine_fields;
        Self {
            rights: TenantRights {
                scopes,
                // Checked with the configuration; what cannot be read allows nothing.
                models: AllowedModels::read(models).unwrap_or_else(|_| AllowedModels::nothing()),
                fields: EngineFieldSet::granted(fields, context.is_alone, may_override),
                media_urls: context.media_urls,
            },
            limits: TenantLimits::of(entry, context.streams),
            routers: context.routers.clone(),
            queue: QueueShare {
                weight: entry.weight,
                // Checked with the configuration: a whole number from -100 to 100.
                #[allow(clippy::cast_possible_truncation, reason = "it is whole and small")]
                priority: entry.priority as i32,
                most_queued: Some(context.queued),
                slo_ttft: entry.slo_ttft,
                slo_tpot: entry.slo_tpot,
            },
            is_alone: context.is_alone,
            sees_decisions: context.sees_decisions,
            isolation: context.isolation,
            secret: context.secret.clone(),
        }
    }

    /// Returns rules that allow everything; only URLs of media may be restricted.
    fn unlimited(media_urls: MediaUrlRule) -> Self {
        Self {
            rights: TenantRights {
                scopes: ScopeSet::ALL,
                models: AllowedModels::default(),
                fields: EngineFieldSet::granted(&[], true, true),
                media_urls,
            },
            limits: TenantLimits::default(),
            routers: RouterCount::default(),
            queue: QueueShare {
                weight: 1.0,
                priority: 0,
                most_queued: None,
                slo_ttft: None,
                slo_tpot: None,
            },
            is_alone: true,
            sees_decisions: true,
            isolation: Isolation::Shared,
            secret: SaltSecret::default(),
        }
    }
}

impl Tenant {
    /// Returns the tenant of an entry, with rules made of the entry's and the state of the name.
    pub(crate) fn of(entry: &KeyEntry, rules: Arc<TenantRules>, named: NamedState) -> Self {
        Self {
            expires_at: entry.expires_at(),
            enabled: entry.is_enabled(),
            metadata: entry.metadata().cloned(),
            ..Self::with_rules(rules, named)
        }
    }

    /// Returns a tenant with these rules whose key is accepted at all times.
    pub(crate) fn with_rules(rules: Arc<TenantRules>, (name, state): NamedState) -> Self {
        Self {
            name,
            rules,
            expires_at: None,
            enabled: true,
            metadata: None,
            state,
        }
    }

    /// Returns a tenant that may do everything; only URLs of media may be restricted.
    pub(crate) fn unlimited(media_urls: MediaUrlRule, named: NamedState) -> Self {
        Self::with_rules(Arc::new(TenantRules::unlimited(media_urls)), named)
    }

    /// Returns its name.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns whether its key is accepted at all.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns whether its key has expired at this time, in seconds since 1970.
    pub fn is_expired(&self, unix_s: i64) -> bool {
        self.expires_at.is_some_and(|end| unix_s >= end)
    }

    /// Returns whether it may use a scope.
    pub fn has_scope(&self, scope: Scope) -> bool {
        self.rules.rights.scopes.has(scope)
    }

    /// Returns whether its bodies may have a field for engines.
    pub fn may_send(&self, field: EngineField) -> bool {
        self.rules.rights.fields.has(field)
    }

    /// Returns which URLs of media in its bodies reach engines.
    pub fn media_urls(&self) -> MediaUrlRule {
        self.rules.rights.media_urls
    }

    /// Returns whether no other tenant is configured.
    pub fn is_alone(&self) -> bool {
        self.rules.is_alone
    }

    /// Returns whether replies tell of the decision.
    pub fn sees_decisions(&self) -> bool {
        self.rules.sees_decisions
    }

    /// Returns whether its cached blocks are kept apart from those of others.
    pub fn is_salted(&self) -> bool {
        self.rules.isolation != Isolation::Shared
    }

    /// Returns whether only engines that honour its salt may get its requests.
    pub fn is_strictly_isolated(&self) -> bool {
        self.rules.isolation == Isolation::Strict
    }

    /// Returns the salt of its requests for engines; `client`: the salt in the request, if any.
    /// `None` if its cached blocks are not kept apart from those of others.
    pub fn cache_salt(&self, client: Option<&str>) -> Option<String> {
        if !self.is_salted() {
            return None;
        }
        let salt = self.state.salt(|| self.rules.secret.salt_of(&self.name));
        Some(salt.text(client))
    }

    /// Returns the models that its requests may name.
    pub fn models(&self) -> &AllowedModels {
        &self.rules.rights.models
    }

    /// Returns what it gets while its requests wait for a worker.
    pub fn queue_share(&self) -> QueueShare {
        self.rules.queue
    }

    /// Returns the operator's notes: names and values.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        self.metadata.iter().flat_map(|metadata| metadata.iter())
    }

    /// Returns what its requests have come to.
    pub fn counts(&self) -> TenantCounts {
        self.state.counts()
    }

    /// Lets a request in that uses a route of this scope, or says why not.
    ///
    /// # Errors
    ///
    /// The refusal, which is counted.
    pub fn admit(self: &Arc<Self>, scope: Scope, now: Moment) -> Result<TenantPermit, Refusal> {
        self.count_and_check(scope)?;
        let place = self.state.enter(&self.own_limits(), now)?;
        Ok(self.permit(place))
    }

    /// Lets a request in that ends work, whatever the limits are: it makes room.
    ///
    /// # Errors
    ///
    /// The refusal, which is counted.
    pub fn admit_release(self: &Arc<Self>, scope: Scope) -> Result<TenantPermit, Refusal> {
        self.count_and_check(scope)?;
        Ok(self.permit(self.state.stay()))
    }

    fn count_and_check(&self, scope: Scope) -> Result<(), Refusal> {
        self.state.count_request();
        if self.has_scope(scope) {
            return Ok(());
        }
        self.state.count_error();
        Err(Refusal::ScopeMissing(scope))
    }

    fn permit(self: &Arc<Self>, place: TenantPlace) -> TenantPermit {
        TenantPermit {
            tenant: Arc::clone(self),
            reserved: TokenAmounts::default(),
            stream: None,
            _place: place,
        }
    }

    /// Returns whether its tokens per minute are limited.
    pub fn limits_tokens(&self) -> bool {
        self.rules.limits.has_tokens()
    }

    /// Returns this router's share of the limits.
    fn own_limits(&self) -> TenantLimits {
        let rules = &self.rules;
        match rules.routers.get() {
            1 => rules.limits,
            routers => rules.limits.share_of(routers),
        }
    }

    /// Takes a place among the concurrent requests for what a request leaves behind, such as a
    /// reservation. The request itself was let in, so no limit is asked.
    pub fn stay(&self) -> TenantPlace {
        self.state.stay()
    }
}

/// The permit of a request, with its place among the concurrent ones of its tenant.
#[derive(Debug)]
pub struct TenantPermit {
    tenant: Arc<Tenant>,
    /// Tokens that count as used until the end.
    reserved: TokenAmounts,
    /// Of a request for a stream.
    stream: Option<StreamPlace>,
    _place: TenantPlace,
}

impl TenantPermit {
    /// Returns the tenant.
    pub fn tenant(&self) -> &Arc<Tenant> {
        &self.tenant
    }

    /// Counts that the request ended in an error.
    pub fn count_error(&self) {
        self.tenant.state.count_error();
    }

    /// Takes a place among the streams of the tenant to the end of the request, which may have one
    /// already.
    ///
    /// # Errors
    ///
    /// The refusal, which is counted.
    pub fn begin_stream(&mut self) -> Result<(), Refusal> {
        if self.stream.is_none() {
            let limits = self.tenant.own_limits();
            self.stream = Some(self.tenant.state.begin_stream(&limits)?);
        }
        Ok(())
    }

    /// Returns the tokens that are reserved for the request.
    pub fn reserved(&self) -> TokenAmounts {
        self.reserved
    }

    /// Reserves the tokens of the request until its end, which [`Self::settle_tokens`] tells.
    ///
    /// # Errors
    ///
    /// The refusal, which is counted; nothing is reserved then.
    pub fn reserve_tokens(&mut self, amounts: TokenAmounts, now: Moment) -> Result<(), Refusal> {
        let limits = self.tenant.own_limits();
        self.tenant.state.reserve_tokens(amounts, &limits, now)?;
        self.reserved = amounts;
        Ok(())
    }

    /// Replaces what is reserved by what the request used.
    pub fn settle_tokens(&mut self, used: TokenAmounts, now: Moment) {
        let reserved = std::mem::take(&mut self.reserved);
        self.correct_tokens(reserved, used, now);
    }

    /// Replaces what an earlier request of the tenant counted by what it used.
    pub fn correct_tokens(&self, counted: TokenAmounts, used: TokenAmounts, now: Moment) {
        if self.tenant.limits_tokens() && counted != used {
            let limits = self.tenant.own_limits();
            (self.tenant.state).settle_tokens(counted, used, &limits, now);
        }
    }

    /// Counts the tokens of the request.
    pub fn count_tokens(&self, tokens: ReportedTokens) {
        self.tenant.state.count_tokens(tokens);
    }
}
