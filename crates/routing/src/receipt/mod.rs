//! Receipts: what was decided, what was tried and what came of it.
//!
//! A [`Receipt`] is kept as plain values and turned into JSON only when somebody reads it; [`Ring`] keeps the latest.
//! This module does not decide, does not measure, and holds no prompt text.
//!
//! **Invariant**: a receipt's JSON has every field of `warmroute.receipt/1`, in that order, whatever happened; what is
//! not known is `null`.

mod json;
mod record;
mod ring;

pub use record::{
    Attempt, AttemptClass, AttemptResult, ClusterNote, DecisionId, DecisionIdError, DecisionIds,
    OutcomeKind, PromptNote, PromptSource, QueueWait, Receipt, RequestOutcome, RouterAnswer,
    RouterTiming,
};
pub use ring::{ReceiptFilter, ReceiptRing, ReceiptRingLimits};
