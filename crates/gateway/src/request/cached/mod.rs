//! Before the stages of a generation: does a reply that is there already answer it, and may its own answer others?
//!
//! First what is kept (`response-cache`), then what is under way or just over ([`crate::alike`]); only then is a worker
//! thought of. What a kept reply looks like is `dialect`'s matter, where it lies `response-cache`'s.
//!
//! **Invariant**: nothing here makes a request fail, and a reply is kept only if the client got all of it and it was right.

mod asked;
mod fill;
mod hit;
mod look;
mod similar;
mod status;

use std::{panic::AssertUnwindSafe, sync::Arc};

use dialect::Dialect;
use futures_util::FutureExt;
use http::{Response, header};
use response_cache::Looked as Counted;

use self::{
    asked::Asked,
    fill::Fill,
    look::Looked,
    status::{Reason, Status},
};
pub(crate) use self::{fill::Kept, similar::Sought};
use super::{accept::Call, reply::ReplyBody, settle::Settle};
use crate::{
    Gateway,
    alike::{Afterwards, Joined, Place},
    routes::Shape,
};

/// The generation: answered from what is there, or else sent, once for all that are alike.
pub(super) async fn generate(
    gateway: &Arc<Gateway>,
    call: Call,
    dialect: Dialect,
    mut settle: Settle,
) -> Response<ReplyBody> {
    let began = gateway.clock.now();
    let asked = Asked::of(gateway, &call, dialect).await;
    let looked = look::up(gateway, &call, &asked).await;
    settle.timing().cache = gateway.clock.now().ms_since(began) * 1e3;
    let (status, fill) = match looked {
        Looked::Hit(found) => {
            gateway.cache.looked(Counted::Hit);
            return hit::answer(gateway, &call, &asked, settle, found);
        }
        Looked::Sent(status, fill) => (status, fill),
    };
    let afterwards = if fill.is_some() {
        Afterwards::KeptElsewhere
    } else {
        Afterwards::Answers
    };
    let place = asked
        .alike(gateway, fill.is_some())
        .map(|key| gateway.alike.enter(key, afterwards));
    let own = Own {
        gateway: Arc::clone(gateway),
        dialect,
        status,
        fill,
    };
    match place {
        None => own.generate(call, settle).await,
        Some(Place::First(seat)) => {
            settle.tells_whether_good(seat.good());
            let (gateway, request_id) = (Arc::clone(gateway), Arc::clone(&call.request_id));
            let shape = Shape::of(call.target.path());
            // A panic costs the one request that had it: the others, who may have been driving it, send their own.
            let reply = async move {
                // Others may get the reply who cannot read it otherwise.
                let mut call = call;
                call.headers.remove(header::ACCEPT_ENCODING);
                let reply = AssertUnwindSafe(own.generate(call, settle))
                    .catch_unwind()
                    .await;
                reply.unwrap_or_else(|_| super::panicked(&gateway, shape, &request_id))
            };
            seat.lead(Box::pin(reply)).await
        }
        Some(Place::Joins(seat)) => match seat.join().await {
            Joined::Reply(status, head, body) => {
                if own.status.is_some() {
                    gateway.cache.looked(Counted::Hit);
                }
                hit::joined(gateway, &call, &asked, settle, (status, head, body))
            }
            Joined::Nothing => own.generate(call, settle).await,
        },
    }
}

/// A request that a worker is to answer.
struct Own {
    gateway: Arc<Gateway>,
    dialect: Dialect,
    status: Option<Status>,
    fill: Option<Fill>,
}

impl Own {
    async fn generate(self, mut call: Call, mut settle: Settle) -> Response<ReplyBody> {
        let Self {
            gateway,
            dialect,
            status,
            fill,
        } = self;
        if let Some(status) = status {
            gateway.cache.looked(status.looked());
        }
        let Some(fill) = fill else {
            let response = super::generate(&gateway, call, dialect, settle).await;
            return status::told(status, gateway.rules.headers, response);
        };
        // What is kept is read here.
        call.headers.remove(header::ACCEPT_ENCODING);
        let good = settle.good();
        let response = super::generate(&gateway, call, dialect, settle).await;
        fill.watch(status::told(status, gateway.rules.headers, response), good)
    }
}
