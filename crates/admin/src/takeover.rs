//! `POST /admin/takeover`: hands the listening sockets to another process, by an injected function.

use std::{fmt, path::Path, sync::Arc};

use api::{TakeoverReply, TakeoverRequest};
use axum::{body::Bytes, extract::State, response::Response};
use dialect::{ApiError, ErrorCode};

use crate::response;

/// Handover of the listening sockets to the process at a unix socket.
#[derive(Clone)]
pub struct Takeover(Arc<SocketSender>);

type SocketSender = dyn Fn(&Path) -> Result<(), String> + Send + Sync;

impl Takeover {
    /// Creates the takeover from `pass_sockets`, whose error is the reason of a failure.
    pub fn new(pass_sockets: impl Fn(&Path) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(pass_sockets))
    }
}

impl fmt::Debug for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Takeover").finish_non_exhaustive()
    }
}

pub(crate) async fn hand_over(State(takeover): State<Takeover>, body: Bytes) -> Response {
    let request = serde_json::from_slice::<TakeoverRequest>(&body)
        .ok()
        .filter(|request| request.socket.is_absolute());
    let Some(request) = request else {
        let message = r#"the body names no socket: `warmroute serve --takeover` sends {"socket": "/absolute/path"}"#;
        return response::error(&ApiError::new(ErrorCode::InvalidRequest, message).param("socket"));
    };
    let pass_sockets = takeover.0;
    let result = runtime::spawn_blocking(move || pass_sockets(&request.socket)).await;
    match result.unwrap_or_else(|_| Err("the listening sockets could not be given".to_owned())) {
        Ok(()) => response::json(&TakeoverReply { given: true }),
        Err(why) => response::error(&ApiError::new(ErrorCode::Conflict, why)),
    }
}
