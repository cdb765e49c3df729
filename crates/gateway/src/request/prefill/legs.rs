//! The parts that all connectors share: a prefill sent and read to its end, and both legs at once.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use dialect::{Edit, PrefillReply};
use kv_blocks::Moment;
use proxy::{ReadError, UpstreamBody, UpstreamReply};

use super::{
    super::{
        accept::AcceptedRequest,
        attempt_failure::AttemptFailure,
        dispatch::{AttemptTarget, CommittedReply, Dispatcher},
        record::RequestGuard,
    },
    PrefillContext,
};
use crate::ids::IdGenerator;

/// Bytes of a prefill's reply per byte of the request: a token id with its comma for each.
const REPLY_FACTOR: usize = 8;
/// Bytes of the reply that do not depend on the request's size: templates and images become tokens
/// too.
const REPLY_SLACK: usize = 1 << 20;

/// The two legs of one request.
#[derive(Debug)]
pub(crate) struct PrefillDecodeLegs<'a> {
    pub(crate) dispatcher: &'a Dispatcher,
    pub(crate) context: &'a PrefillContext,
    pub(crate) ids: &'a IdGenerator,
    pub(crate) call: &'a AcceptedRequest,
    /// The worker that generates.
    pub(crate) decode: &'a AttemptTarget,
    /// The worker that computes the prompt.
    pub(crate) prefill: AttemptTarget,
    /// Deadline of the whole request.
    pub(crate) deadline: Moment,
}

/// The outcome of both legs.
#[derive(Debug)]
pub(crate) enum LegsOutcome {
    /// The prefill failed with nothing forwarded: the request is decided again, without a prefill
    /// leg.
    PrefillFailed,
    /// The decode worker's result.
    Decode(Box<Result<CommittedReply, AttemptFailure>>),
}

impl PrefillDecodeLegs<'_> {
    /// Returns the rest of the request's time.
    pub(super) fn time_left(&self) -> Duration {
        self.deadline.since(self.dispatcher.clock.now())
    }

    /// Returns the client's body with these edits.
    pub(super) fn body(&self, edits: &[Edit<'_>]) -> Result<Bytes, Box<AttemptFailure>> {
        // An earlier stage parsed it as one object.
        let spliced = dialect::splice(self.call.body.bytes(), edits);
        let unspliced =
            |error| AttemptFailure::protocol(format!("the body cannot be spliced: {error}"));
        spliced
            .map(Bytes::from)
            .map_err(|error| Box::new(unspliced(error)))
    }

    /// Sends the prefill and reads all of its reply. Its time limit is half of the request's
    /// remaining time: if it fails, the decode worker needs the other half to compute the prompt
    /// itself.
    pub(super) async fn prefill(&self, body: Bytes) -> Result<Bytes, Box<AttemptFailure>> {
        let left = self.time_left() / 2;
        tokio::select! {
            reply = tokio::time::timeout(left, self.prefill_reply(body)) => {
                reply.unwrap_or_else(|_| Err(Box::new(AttemptFailure::timeout(left))))
            }
            () = self.dispatcher.abort.aborted() => Err(Box::new(AttemptFailure::draining())),
        }
    }

    async fn prefill_reply(&self, body: Bytes) -> Result<Bytes, Box<AttemptFailure>> {
        let most = body
            .len()
            .saturating_mul(REPLY_FACTOR)
            .saturating_add(REPLY_SLACK);
        let sent = self.dispatcher.send(self.call, body, &self.prefill).await;
        let UpstreamReply { head, mut body } = sent?;
        let status = head.status.as_u16();
        let reply = read_whole(&mut body, most).await?;
        let failure = match status {
            200..=299 => return Ok(reply),
            429 | 502 | 503 | 504 => AttemptFailure::from_status(head, reply),
            500..=599 => AttemptFailure::internal(status),
            // Most likely the request's own fault: the decode worker reports it to the client.
            _ => AttemptFailure {
                kind: None,
                ..AttemptFailure::internal(status)
            },
        };
        Err(Box::new(failure))
    }

    /// Runs the decode leg alone.
    pub(super) async fn decode(&self, body: Bytes) -> Result<CommittedReply, AttemptFailure> {
        self.dispatcher
            .attempt(self.call, body, self.decode, self.deadline)
            .await
    }

    /// Runs the decode leg after the prefill, with the body that the prefill's reply gave.
    pub(super) async fn decode_after(
        &self,
        decode: Result<Bytes, Box<AttemptFailure>>,
        guard: &mut RequestGuard,
    ) -> LegsOutcome {
        let body = match decode {
            Ok(body) => body,
            Err(failure) => {
                guard.fail_prefill(&failure);
                return LegsOutcome::PrefillFailed;
            }
        };
        guard.record_decode_sent();
        LegsOutcome::Decode(Box::new(self.decode(body).await))
    }

    /// Runs both legs at once, for engines that rendezvous by themselves. If the prefill fails, the
    /// decode connection is closed; once the decode worker answers it has the prompt, so the
    /// prefill is not waited for.
    pub(super) async fn at_once(
        &self,
        prefill: Bytes,
        decode: Bytes,
        guard: &mut RequestGuard,
    ) -> LegsOutcome {
        guard.record_decode_sent();
        let mut decode = pin!(self.decode(decode));
        let computed = tokio::select! {
            computed = self.prefill(prefill) => computed,
            answer = &mut decode => {
                // An error reply shows nothing about the prompt.
                let has_it = answer.as_ref().is_ok_and(|committed| committed.head.status.is_success());
                guard.finish_prefill(has_it, None);
                return LegsOutcome::Decode(Box::new(answer));
            }
        };
        match computed.and_then(|reply| read(&reply).map(|reply| reply.usage)) {
            Ok(usage) => guard.finish_prefill(true, usage),
            Err(failure) => {
                guard.fail_prefill(&failure);
                return LegsOutcome::PrefillFailed;
            }
        }
        LegsOutcome::Decode(Box::new(decode.await))
    }
}

/// Parses a prefill's reply.
pub(super) fn read(reply: &[u8]) -> Result<PrefillReply<'_>, Box<AttemptFailure>> {
    let no_reply = || AttemptFailure::protocol("the prefill worker's reply is no reply".to_owned());
    PrefillReply::read(reply).ok_or_else(|| Box::new(no_reply()))
}

/// Reads the rest of a reply of the prefill side.
pub(super) async fn read_whole(
    body: &mut UpstreamBody,
    most: usize,
) -> Result<Bytes, Box<AttemptFailure>> {
    let failure = |error| match error {
        ReadError::Broken => AttemptFailure::no_answer(),
        ReadError::TooLong => AttemptFailure::protocol(format!(
            "the prefill worker's reply is longer than {most} bytes"
        )),
    };
    body.read_to_end(most)
        .await
        .map_err(|error| Box::new(failure(error)))
}
