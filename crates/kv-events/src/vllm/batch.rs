//! The batch envelope around events.

use super::{event::VllmEvent, event_error::VllmEventError, fields::VllmFields, values::MAX_PARTS};
use crate::wire::{MsgpackError, MsgpackHead, MsgpackReader};

/// Most events in one batch: far more than an engine's blocks of one step. A decoded event takes
/// more memory than its shortest bytes, so the sender must not choose the number: 80 MiB at most.
const MAX_EVENTS: usize = 1 << 18;

/// One decoded batch.
#[derive(Clone, Debug, PartialEq)]
pub struct EventBatch {
    /// The publisher's wall clock in its own unit (vLLM: seconds); `None` when it is not a usable
    /// number.
    pub ts: Option<f64>,
    /// The events in order; a malformed event is an error in its place.
    pub events: Vec<Result<VllmEvent, VllmEventError>>,
    /// The data-parallel rank that the publisher names. The registration of the stream takes
    /// precedence.
    pub dp_rank: Option<u32>,
}

/// Why a whole payload is unusable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event batch of {bytes} bytes is unusable: {reason}")]
pub struct VllmBatchError {
    /// Length of the payload.
    pub bytes: usize,
    /// The problem.
    pub reason: &'static str,
}

/// Decodes one batch; a malformed event does not affect the others.
///
/// A batch is an array `[ts, events]`, `[ts, events, rank]` or longer (further members are
/// skipped), or a map with `ts`, `events` and `data_parallel_rank`.
///
/// ```
/// use kv_events::vllm::{EventEncoding, VllmEvent, WireEvent, decode, encode};
///
/// let payload = encode(12.5, Some(0), &[WireEvent::Cleared], EventEncoding::CURRENT);
/// let batch = decode(&payload).unwrap();
/// assert_eq!(batch.events, [Ok(VllmEvent::Cleared)]);
/// assert!(decode(&payload[1..]).is_err());
/// ```
pub fn decode(payload: &[u8]) -> Result<EventBatch, VllmBatchError> {
    envelope(payload).map_err(|MsgpackError(reason)| VllmBatchError {
        bytes: payload.len(),
        reason,
    })
}

/// Returns the data-parallel rank of a batch without decoding its events: where ranks share a
/// topic, it identifies the number sequence. `None` also for bytes that are not a batch.
///
/// ```
/// use kv_events::vllm::{EventEncoding, encode, rank_of};
///
/// assert_eq!(rank_of(&encode(12.5, Some(3), &[], EventEncoding::CURRENT)), Some(3));
/// assert_eq!(rank_of(b"garbage"), None);
/// ```
pub fn rank_of(payload: &[u8]) -> Option<u32> {
    let mut reader = MsgpackReader::new(payload);
    let (_, _, rank) = match reader.head().ok()? {
        MsgpackHead::Array(len) => array_members(&mut reader, len).ok()?,
        MsgpackHead::Map(pairs) => map_members(&mut reader, pairs).ok()?,
        _ => return None,
    };
    match MsgpackReader::new(rank?).head().ok()? {
        MsgpackHead::Unsigned(rank) => u32::try_from(rank).ok(),
        _ => None,
    }
}

fn envelope(payload: &[u8]) -> Result<EventBatch, MsgpackError> {
    let mut reader = MsgpackReader::new(payload);
    let (ts, events, rank) = match reader.head()? {
        MsgpackHead::Array(len) => array_members(&mut reader, len)?,
        MsgpackHead::Map(pairs) => map_members(&mut reader, pairs)?,
        _ => return Err(MsgpackError("a batch is an array or a map")),
    };
    if !reader.is_at_end() {
        return Err(MsgpackError("bytes follow the batch"));
    }
    let ts = match ts.map(|ts| MsgpackReader::new(ts).head()).transpose()? {
        None | Some(MsgpackHead::Nil) => None,
        Some(MsgpackHead::Float(ts)) => Some(ts).filter(|ts| ts.is_finite()),
        #[expect(
            clippy::cast_precision_loss,
            reason = "a clock: the last microsecond does not matter"
        )]
        Some(MsgpackHead::Unsigned(ts)) => Some(ts as f64),
        _ => return Err(MsgpackError("ts is no number")),
    };
    let dp_rank = match rank
        .map(|rank| MsgpackReader::new(rank).head())
        .transpose()?
    {
        None | Some(MsgpackHead::Nil) => None,
        Some(MsgpackHead::Unsigned(rank)) => Some(
            u32::try_from(rank).map_err(|_| MsgpackError("data_parallel_rank is out of range"))?,
        ),
        _ => return Err(MsgpackError("data_parallel_rank is no whole number")),
    };
    Ok(EventBatch {
        ts,
        events: read_events(events)?,
        dp_rank,
    })
}

/// The bytes of ts, events and rank.
type BatchMembers<'a> = (Option<&'a [u8]>, &'a [u8], Option<&'a [u8]>);

fn array_members<'a>(
    reader: &mut MsgpackReader<'a>,
    len: usize,
) -> Result<BatchMembers<'a>, MsgpackError> {
    if len < 2 {
        return Err(MsgpackError("a batch has at least ts and events"));
    }
    let (ts, events) = (reader.value()?, reader.value()?);
    let rank = if len > 2 { Some(reader.value()?) } else { None };
    for _ in 3..len {
        reader.value()?;
    }
    Ok((Some(ts), events, rank))
}

fn map_members<'a>(
    reader: &mut MsgpackReader<'a>,
    pairs: usize,
) -> Result<BatchMembers<'a>, MsgpackError> {
    let (mut ts, mut events, mut rank) = (None, None, None);
    for _ in 0..pairs {
        let (key, value) = (reader.value()?, reader.value()?);
        let member = match MsgpackReader::new(key).head()? {
            MsgpackHead::Text(b"ts") => &mut ts,
            MsgpackHead::Text(b"events") => &mut events,
            MsgpackHead::Text(b"data_parallel_rank") => &mut rank,
            _ => continue,
        };
        if member.replace(value).is_some() {
            return Err(MsgpackError("a key of the batch occurs twice"));
        }
    }
    Ok((
        ts,
        events.ok_or(MsgpackError("a batch has at least events"))?,
        rank,
    ))
}

fn read_events(bytes: &[u8]) -> Result<Vec<Result<VllmEvent, VllmEventError>>, MsgpackError> {
    let mut reader = MsgpackReader::new(bytes);
    let MsgpackHead::Array(len) = reader.head()? else {
        return Err(MsgpackError("events are no array"));
    };
    if len > MAX_EVENTS {
        return Err(MsgpackError("a batch has more than 262,144 events"));
    }
    // Grows with the events actually read: the length is only the sender's claim.
    let mut events = Vec::with_capacity(len.min(64));
    let mut parts = 0;
    for _ in 0..len {
        let event = VllmFields::scan(&mut reader)?.and_then(|fields| VllmEvent::read(&fields));
        parts += event.as_ref().map_or(0, VllmEvent::parts);
        if parts > MAX_PARTS {
            return Err(MsgpackError(
                "a batch has more than 1,048,576 blocks and parts of extra keys",
            ));
        }
        events.push(event);
    }
    Ok(events)
}
