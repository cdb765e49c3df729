//! Tenants: who a client's key belongs to, what it may use, and how much of it at a time.
//!
//! Keys are looked up by their SHA-256 and kept in no other form. Whether models and scopes are
//! allowed is asked here; where a request names them, the request path knows. No clock is read:
//! times are arguments.
//!
//! **Invariant**: the running state of a tenant belongs to its name: a reload changes its rules and
//! neither its bucket nor its counts.

mod bucket;
mod digest;
mod engine_fields;
mod key_entry;
mod limits;
mod models;
mod salt;
mod section;
mod state;
mod table;
mod tenant;
mod validated;

pub use digest::{KeyDigest, WrongDigest};
pub use engine_fields::EngineField;
pub use key_entry::{EntryParts, EntryRules, KeyEntry, ListedKeys};
pub use limits::{RouterCount, TokenAmounts, TokenKind, TokensRefused};
pub use models::{AllowedModels, WrongPattern};
pub use salt::SaltSecret;
pub use section::{
    HeaderExposure, Isolation, KeyValidation, MediaUrlRule, MediaUrls, Scope, TenantDefaults,
    TenantEntry, TenantsSection, expiry,
};
pub use state::{ReportedTokens, TenantCounts, TenantPlace};
pub use table::{KeyTable, KeyVerdict, TenantSecrets, Tenants};
pub use tenant::{QueueShare, Refusal, Tenant, TenantPermit};
pub use validated::{KnownKey, ValidatedKeys};

/// The tenant of the key that is not in the configuration, and of requests that need no key.
pub const DEFAULT_TENANT: &str = "default";
