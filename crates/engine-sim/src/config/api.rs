//! The checked settings of the HTTP API.

use crate::args::ApiArgs;

/// What the HTTP API offers and reports.
#[derive(Clone, Debug)]
pub(crate) struct ApiConfig {
    /// When the usage reports cached tokens.
    pub(crate) usage_details: UsageDetails,
    /// Whether replies report token ids on request.
    pub(crate) token_ids: bool,
    /// Paths answered with 404.
    pub(crate) without: Vec<String>,
    /// Whether the engine serves Anthropic's routes.
    pub(crate) anthropic: bool,
    pub(crate) api_key: Option<String>,
}

/// When the usage reports cached tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsageDetails {
    Always,
    /// Only if there were any.
    OnHits,
    Never,
}

impl From<ApiArgs> for ApiConfig {
    fn from(args: ApiArgs) -> Self {
        Self {
            usage_details: match (args.no_usage_details, args.details_on_hits_only) {
                (true, _) => UsageDetails::Never,
                (false, true) => UsageDetails::OnHits,
                (false, false) => UsageDetails::Always,
            },
            token_ids: !args.no_token_ids,
            without: args.without,
            anthropic: args.anthropic,
            api_key: args.api_key,
        }
    }
}
