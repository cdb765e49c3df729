//! What the connectors have in common: a prefill sent and read to its end, and both legs under way at once.

use std::pin::pin;

use bytes::Bytes;
use dialect::{Edit, PrefillReply};
use fleet::WorkerView;
use hyper::body::Incoming;
use kv_blocks::Moment;
use routing::PrefillLeg;

use super::super::{
    accept::AcceptedRequest,
    dispatch::{self, AttemptFailure, CommittedReply},
    record::RequestGuard,
};
use crate::{
    Gateway,
    upstream::{OutgoingRequest, UpstreamReply},
};

/// Bytes of a prefill's reply for each byte of the request: a token id and its comma for each.
const REPLY_FACTOR: usize = 8;
/// Bytes of it that do not depend on the request's size: templates and pictures become tokens too.
const REPLY_SLACK: usize = 1 << 20;

/// One request at two workers.
#[derive(Debug)]
pub(crate) struct PrefillDecodeLegs<'a> {
    pub(crate) gateway: &'a Gateway,
    pub(crate) call: &'a AcceptedRequest,
    /// Who generates.
    pub(crate) decode: &'a WorkerView,
    pub(crate) target: kv_blocks::Target,
    /// Who computes the prompt.
    pub(crate) prefill: &'a WorkerView,
    pub(crate) leg: PrefillLeg,
    /// Of the whole request.
    pub(crate) deadline: Moment,
}

/// What came of both.
#[derive(Debug)]
pub(crate) enum LegsOutcome {
    /// The prefill came to nothing, and nothing was forwarded: the request is decided anew, without one.
    PrefillFailed,
    /// The decode worker's answer.
    Decode(Box<Result<CommittedReply, AttemptFailure>>),
}

impl PrefillDecodeLegs<'_> {
    /// The client's body with these changes.
    pub(super) fn body(&self, edits: &[Edit<'_>]) -> Result<Bytes, Box<AttemptFailure>> {
        // It was read as one object before anything was decided.
        let spliced = dialect::splice(self.call.body.bytes(), edits);
        let unspliced =
            |error| AttemptFailure::protocol(format!("the body cannot be spliced: {error}"));
        spliced
            .map(Bytes::from)
            .map_err(|error| Box::new(unspliced(error)))
    }

    /// Sends the prefill and waits for all of its reply. It may take half of the time that the request has left: the
    /// decode worker needs the other half where it has to compute the prompt itself.
    pub(super) async fn prefill(&self, body: Bytes) -> Result<Bytes, Box<AttemptFailure>> {
        let left = self.deadline.since(self.gateway.clock.now()) / 2;
        tokio::select! {
            reply = tokio::time::timeout(left, self.prefill_reply(body)) => {
                reply.unwrap_or_else(|_| Err(Box::new(AttemptFailure::timeout(left))))
            }
            () = self.gateway.cut.aborted() => Err(Box::new(AttemptFailure::draining())),
        }
    }

    async fn prefill_reply(&self, body: Bytes) -> Result<Bytes, Box<AttemptFailure>> {
        let (gateway, worker) = (self.gateway, self.prefill);
        let most = body
            .len()
            .saturating_mul(REPLY_FACTOR)
            .saturating_add(REPLY_SLACK);
        let outgoing = OutgoingRequest {
            worker: worker.id,
            url: &worker.url,
            request: dispatch::request(self.call, body, worker, self.leg.target),
            connect_timeout: gateway.rules.connect_timeout,
        };
        let UpstreamReply {
            response,
            connection,
        } = gateway
            .pools
            .send(outgoing, &gateway.clock)
            .await
            .map_err(AttemptFailure::from_send_failure)?;
        let (head, body) = response.into_parts();
        let status = head.status.as_u16();
        let reply = whole(body, most).await?;
        gateway.pools.release(worker.id, connection, gateway.clock);
        let failure = match status {
            200..=299 => return Ok(reply),
            429 | 502 | 503 | 504 => AttemptFailure::from_status(head, reply),
            500..=599 => AttemptFailure::internal(status),
            // The request's own fault, most likely: the decode worker will say so to the client.
            _ => AttemptFailure {
                kind: None,
                ..AttemptFailure::internal(status)
            },
        };
        Err(Box::new(failure))
    }

    /// The decode leg alone.
    pub(super) async fn decode(&self, body: Bytes) -> Result<CommittedReply, AttemptFailure> {
        dispatch::attempt(
            self.gateway,
            self.call,
            body,
            self.decode,
            self.target,
            self.deadline,
        )
        .await
    }

    /// Both legs at once, for engines that meet by themselves. A decode worker whose prompt will not come is hung up on;
    /// one that answers has it, so its prefill need not be waited for.
    pub(super) async fn at_once(
        &self,
        prefill: Bytes,
        decode: Bytes,
        settle: &mut RequestGuard,
    ) -> LegsOutcome {
        settle.record_decode_sent();
        let mut decode = pin!(self.decode(decode));
        let computed = tokio::select! {
            computed = self.prefill(prefill) => computed,
            answer = &mut decode => {
                // An error says nothing of the prompt.
                let has_it = answer.as_ref().is_ok_and(|committed| committed.head.status.is_success());
                settle.finish_prefill(has_it, None);
                return LegsOutcome::Decode(Box::new(answer));
            }
        };
        match computed.and_then(|reply| read(&reply).map(|reply| reply.usage)) {
            Ok(usage) => settle.finish_prefill(true, usage),
            Err(failure) => {
                settle.fail_prefill(&failure);
                return LegsOutcome::PrefillFailed;
            }
        }
        LegsOutcome::Decode(Box::new(decode.await))
    }
}

/// What a reply says, if it is one.
pub(super) fn read(reply: &[u8]) -> Result<PrefillReply<'_>, Box<AttemptFailure>> {
    let no_reply = || AttemptFailure::protocol("the prefill worker's reply is no reply".to_owned());
    PrefillReply::read(reply).ok_or_else(|| Box::new(no_reply()))
}

pub(super) async fn whole(mut body: Incoming, most: usize) -> Result<Bytes, Box<AttemptFailure>> {
    let mut held = dispatch::BodyBuffer::default();
    while let Some(data) = dispatch::next_data(&mut body).await {
        held.push(data.map_err(|_| AttemptFailure::no_answer())?);
        if held.len() > most {
            return Err(AttemptFailure::protocol(format!(
                "the prefill worker's reply is longer than {most} bytes"
            ))
            .into());
        }
    }
    Ok(held.into_bytes())
}
