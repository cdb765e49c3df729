//! Bodies of calls that change something.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `POST /admin/reload`; no body counts as an empty object.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReloadRequest {
    /// Only reports what a reload would change.
    #[serde(default)]
    pub dry_run: bool,
}

/// `POST /admin/config/rollback`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// Id of an applied change, as `GET /admin/config/history` lists it.
    pub id: u64,
}

/// `POST /admin/response-cache/invalidate`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InvalidateRequest {
    /// Must be true.
    pub clear_all: bool,
}

/// `POST /admin/takeover`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TakeoverRequest {
    /// Absolute path of the unix socket that takes the listening sockets.
    pub socket: PathBuf,
}
