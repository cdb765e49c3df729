//! Receipts: the record of a request's decision, attempts and outcome.
//!
//! A [`Receipt`] holds plain values and becomes JSON only when it is read; [`ReceiptRing`] keeps
//! the latest. This module decides and measures nothing, and holds no prompt text.
//!
//! **Invariant**: a receipt's JSON always has every field of `warmroute.receipt/1`, in that order;
//! an unknown value is `null`.

mod attempt;
mod id;
mod json;
mod outcome;
mod record;
mod ring;

pub use api::RouterTiming;
pub use attempt::{Attempt, AttemptClass, AttemptResult};
pub use id::{DecisionId, DecisionIdError, DecisionIds};
pub use outcome::{OutcomeKind, RequestOutcome};
pub use record::{
    ClusterNote, PromptNote, PromptSource, QueueWait, Receipt, RequestNote, RouterAnswer,
};
pub use ring::{ReceiptFilter, ReceiptRing};
