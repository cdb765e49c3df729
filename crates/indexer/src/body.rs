//! Reads the body of a call within limits of length, time and total memory.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use http_body_util::BodyExt;
use resilience::{ByteBudget, BytePermit};

use crate::error::{CallError, CallErrorKind};

/// Longest body, bytes: about five million token ids.
pub(crate) const LONGEST: usize = 32 << 20;
/// Bytes of all bodies together. Above it a call is refused and may be repeated.
const ALL: usize = 256 << 20;
/// Time limit for the arrival of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// Memory budget of all bodies that are being read or answered.
#[derive(Clone, Debug)]
pub(crate) struct BodyMemory(ByteBudget);

/// A body and its share of the memory; dropping it frees the share.
#[derive(Debug)]
pub(crate) struct ReceivedBody {
    pub(crate) bytes: Vec<u8>,
    permit: BytePermit,
}

impl Default for BodyMemory {
    fn default() -> Self {
        Self(ByteBudget::new(ALL))
    }
}

impl BodyMemory {
    pub(crate) async fn read(&self, body: Body) -> Result<ReceivedBody, CallError> {
        let late = || {
            CallError::new(
                CallErrorKind::Slow,
                format!(
                    "the body did not arrive within {} s",
                    BODY_TIMEOUT.as_secs()
                ),
            )
        };
        tokio::time::timeout(BODY_TIMEOUT, self.all_of(body))
            .await
            .map_err(|_| late())?
    }

    async fn all_of(&self, mut body: Body) -> Result<ReceivedBody, CallError> {
        if body.size_hint().lower() > LONGEST as u64 {
            return Err(too_long());
        }
        let mut received = ReceivedBody {
            bytes: Vec::new(),
            permit: self.0.empty_permit(),
        };
        while let Some(frame) = body.frame().await {
            let cut = |_| {
                CallError::new(
                    CallErrorKind::Body,
                    "the body ended early: send as many bytes as were announced",
                )
            };
            let Ok(data) = frame.map_err(cut)?.into_data() else {
                continue;
            };
            if received.bytes.len() + data.len() > LONGEST {
                return Err(too_long());
            }
            if !received.permit.try_grow(data.len()) {
                return Err(full());
            }
            received.bytes.extend_from_slice(&data);
        }
        Ok(received)
    }
}

fn full() -> CallError {
    let message = format!(
        "bodies of {ALL} bytes are being answered, the most there may be: ask again shortly"
    );
    CallError::new(CallErrorKind::Full, message)
}

fn too_long() -> CallError {
    let message = format!(
        "the body has more than {LONGEST} bytes: ask with /query_by_hash, which needs fewer"
    );
    CallError::new(CallErrorKind::TooLong, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_at_the_limit_is_read_and_one_byte_more_is_refused() {
        let bodies = BodyMemory::default();
        let read = bodies.read(Body::from(vec![b' '; LONGEST])).await.unwrap();
        assert_eq!(read.bytes.len(), LONGEST);
        assert_eq!(
            bodies
                .read(Body::from(vec![b' '; LONGEST + 1]))
                .await
                .unwrap_err()
                .kind,
            CallErrorKind::TooLong
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_end_times_out() {
        let endless = futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>();
        let error = BodyMemory::default()
            .read(Body::from_stream(endless))
            .await
            .unwrap_err();
        assert_eq!(error.kind, CallErrorKind::Slow);
    }

    #[tokio::test]
    async fn all_bodies_share_a_budget_that_is_released() {
        let bodies = BodyMemory::default();
        let mut buffered = Vec::new();
        for _ in 0..ALL / LONGEST {
            buffered.push(bodies.read(Body::from(vec![b' '; LONGEST])).await.unwrap());
        }
        assert_eq!(
            bodies.read(Body::from("x")).await.unwrap_err().kind,
            CallErrorKind::Full
        );
        buffered.pop();
        bodies.read(Body::from("x")).await.unwrap();
    }
}
