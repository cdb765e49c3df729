//! What the connectors have in common: a prefill sent and read to its end, and both legs under way at once.

use std::pin::pin;

use bytes::Bytes;
use dialect::{Edit, PrefillReply};
use fleet::WorkerView;
use hyper::body::Incoming;
use kv_blocks::Moment;
use routing::PrefillLeg;

use super::super::{
    accept::Call,
    dispatch::{self, Committed, Failure},
    settle::Settle,
};
use crate::{
    Gateway,
    upstream::{Answer, Outgoing},
};

/// Bytes of a prefill's reply for each byte of the request: a token id and its comma for each.
const REPLY_FACTOR: usize = 8;
/// Bytes of it that do not depend on the request's size: templates and pictures become tokens too.
const REPLY_SLACK: usize = 1 << 20;

/// One request at two workers.
#[derive(Debug)]
pub(crate) struct Legs<'a> {
    pub(crate) gateway: &'a Gateway,
    pub(crate) call: &'a Call,
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
pub(crate) enum Sent {
    /// The prefill came to nothing, and nothing was forwarded: the request is decided anew, without one.
    PrefillFailed,
    /// The decode worker's answer.
    Decode(Box<Result<Committed, Failure>>),
}

impl Legs<'_> {
    /// The client's body with these changes.
    pub(super) fn body(&self, edits: &[Edit<'_>]) -> Result<Bytes, Box<Failure>> {
        // It was read as one object before anything was decided.
        let spliced = dialect::splice(self.call.body.bytes(), edits);
        let unspliced = |error| Failure::protocol(format!("the body cannot be spliced: {error}"));
        spliced
            .map(Bytes::from)
            .map_err(|error| Box::new(unspliced(error)))
    }

    /// Sends the prefill and waits for all of its reply. It may take half of the time that the request has left: the
    /// decode worker needs the other half where it has to compute the prompt itself.
    pub(super) async fn prefill(&self, body: Bytes) -> Result<Bytes, Box<Failure>> {
        let left = self.deadline.since(self.gateway.clock.now()) / 2;
        tokio::select! {
            reply = tokio::time::timeout(left, self.prefill_reply(body)) => {
                reply.unwrap_or_else(|_| Err(Box::new(Failure::timeout(left))))
            }
            () = self.gateway.cut.thrown() => Err(Box::new(Failure::going_down())),
        }
    }

    async fn prefill_reply(&self, body: Bytes) -> Result<Bytes, Box<Failure>> {
        let (gateway, worker) = (self.gateway, self.prefill);
        let most = body
            .len()
            .saturating_mul(REPLY_FACTOR)
            .saturating_add(REPLY_SLACK);
        let outgoing = Outgoing {
            worker: worker.id,
            url: &worker.url,
            request: dispatch::request(self.call, body, worker, self.leg.target),
            connect_timeout: gateway.rules.connect_timeout,
        };
        let Answer {
            response,
            connection,
        } = gateway
            .pools
            .send(outgoing, &gateway.clock)
            .await
            .map_err(Failure::of_send)?;
        let (head, body) = response.into_parts();
        let status = head.status.as_u16();
        let reply = whole(body, most).await?;
        gateway
            .pools
            .give_back(worker.id, connection, gateway.clock);
        let failure = match status {
            200..=299 => return Ok(reply),
            429 | 502 | 503 | 504 => Failure::of_status(head, reply),
            500..=599 => Failure::internal(status),
            // The request's own fault, most likely: the decode worker will say so to the client.
            _ => Failure {
                kind: None,
                ..Failure::internal(status)
            },
        };
        Err(Box::new(failure))
    }

    /// The decode leg alone.
    pub(super) async fn decode(&self, body: Bytes) -> Result<Committed, Failure> {
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
    pub(super) async fn at_once(&self, prefill: Bytes, decode: Bytes, settle: &mut Settle) -> Sent {
        settle.decode_sent();
        let mut decode = pin!(self.decode(decode));
        let computed = tokio::select! {
            computed = self.prefill(prefill) => computed,
            answer = &mut decode => {
                // An error says nothing of the prompt.
                let has_it = answer.as_ref().is_ok_and(|committed| committed.head.status.is_success());
                settle.prefill_over(has_it, None);
                return Sent::Decode(Box::new(answer));
            }
        };
        match computed.and_then(|reply| read(&reply).map(|reply| reply.usage)) {
            Ok(usage) => settle.prefill_over(true, usage),
            Err(failure) => {
                settle.prefill_failed(&failure);
                return Sent::PrefillFailed;
            }
        }
        Sent::Decode(Box::new(decode.await))
    }
}

/// What a reply says, if it is one.
pub(super) fn read(reply: &[u8]) -> Result<PrefillReply<'_>, Box<Failure>> {
    let no_reply = || Failure::protocol("the prefill worker's reply is no reply".to_owned());
    PrefillReply::read(reply).ok_or_else(|| Box::new(no_reply()))
}

pub(super) async fn whole(mut body: Incoming, most: usize) -> Result<Bytes, Box<Failure>> {
    let mut held = dispatch::Held::default();
    while let Some(data) = dispatch::next_data(&mut body).await {
        held.push(data.map_err(|_| Failure::no_answer())?);
        if held.len() > most {
            return Err(Failure::protocol(format!(
                "the prefill worker's reply is longer than {most} bytes"
            ))
            .into());
        }
    }
    Ok(held.into_bytes())
}
