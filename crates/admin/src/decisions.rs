//! `GET /admin/decisions` and `GET /admin/decisions/{id}`.

use std::sync::Arc;

use api::ReceiptList;
use axum::{
    extract::{Path, Query, State},
    response::Response,
};
use dialect::{ApiError, ErrorCode};
use routing::{
    Policy,
    receipt::{DecisionId, ReceiptFilter, ReceiptRing},
};
use serde::Deserialize;

use crate::{list_limit::list_limit, response};

/// Filters of a list.
#[derive(Debug, Deserialize)]
pub(crate) struct DecisionsQuery {
    limit: Option<String>,
    worker: Option<String>,
    tenant: Option<String>,
    policy: Option<String>,
}

pub(crate) async fn list(
    State(ring): State<Arc<ReceiptRing>>,
    Query(narrow): Query<DecisionsQuery>,
) -> Response {
    let limit = match list_limit(narrow.limit.as_deref()) {
        Ok(limit) => limit,
        Err(error) => return response::error(&error),
    };
    let policy = match narrow
        .policy
        .as_deref()
        .map(str::parse::<Policy>)
        .transpose()
    {
        Ok(policy) => policy,
        Err(error) => {
            return response::error(
                &ApiError::new(ErrorCode::UnknownPolicy, error.to_string()).param("policy"),
            );
        }
    };
    let filter = ReceiptFilter {
        worker: narrow.worker.map(Into::into),
        tenant: narrow.tenant.map(Into::into),
        policy,
    };
    let receipts = ring.list(&filter, limit);
    response::json(&ReceiptList {
        decisions: receipts.iter().map(|receipt| (&**receipt).into()).collect(),
    })
}

pub(crate) async fn one(State(ring): State<Arc<ReceiptRing>>, Path(id): Path<String>) -> Response {
    let found = id.parse::<DecisionId>().ok().and_then(|id| ring.get(id));
    match found {
        Some(receipt) => response::json(&*receipt),
        None => response::error(&ApiError::new(
            ErrorCode::DecisionNotFound,
            "no decision of that id is kept: ids are in the x-warmroute-decision header, and only the latest are kept",
        )),
    }
}
