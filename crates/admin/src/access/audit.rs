//! The audit of calls that change something.

use api::openapi::Role;
use axum::{extract::Request, http::StatusCode};

use super::{Caller, Operator};

/// A call that needs more than the role `read`.
pub(super) struct AuditedCall {
    action: String,
    operator: Operator,
    source: String,
}

impl AuditedCall {
    /// Returns the call if it may change something.
    pub(super) fn of(
        needed: Role,
        operator: &Operator,
        caller: Caller,
        request: &Request,
    ) -> Option<Self> {
        (needed > Role::Read).then(|| Self {
            action: format!("{} {}", request.method(), request.uri().path()),
            operator: operator.clone(),
            source: match caller.address {
                Some(address) => address.to_string(),
                None => "unix socket".to_owned(),
            },
        })
    }

    /// Logs the call with its result.
    pub(super) fn log(&self, status: StatusCode) {
        tracing::info!(
            target: "warmroute::audit",
            action = self.action,
            caller = &*self.operator.name,
            role = self.operator.role.as_str(),
            source = self.source,
            status = status.as_u16(),
            "operator call"
        );
    }
}
