//! Receipts: the record of a request's decision, attempts and outcome.
//!
//! A [`Receipt`] holds plain values and becomes JSON only when it is read; [`ReceiptRing`] keeps
//! the latest. This module decides and measures nothing, and holds no prompt text.
//!
//! **Invariant**: a receipt's JSON always has every field of `warmroute.receipt/1`, in that order;
//! an unknown value is `null`.

mod json;
mod record;
mod ring;

pub use api::RouterTiming;
pub use record::{
    Attempt, AttemptClass, AttemptResult, ClusterNote, DecisionId, DecisionIdError, DecisionIds,
    OutcomeKind, PromptNote, PromptSource, QueueWait, Receipt, RequestNote, RequestOutcome,
    RouterAnswer,
};
pub use ring::{ReceiptFilter, ReceiptRing};
