//! The decision log's part of the request guard.

use std::sync::Arc;

use dialect::RequestView;
use kv_blocks::PromptBlocks;
use routing::{
    PrefillNote,
    receipt::{Attempt, Receipt, RequestOutcome, RouterAnswer},
};

use super::RequestGuard;
use crate::decision_log::RequestText;

/// The part of a receipt that is unknown when it is first published.
#[derive(Clone, Debug)]
pub(super) struct LogEnding {
    pub(super) attempts: Vec<Attempt>,
    pub(super) prefill: Option<PrefillNote>,
    pub(super) outcome: Option<RequestOutcome>,
}

impl LogEnding {
    pub(super) fn complete(self, receipt: &mut Receipt) {
        receipt.attempts = self.attempts;
        if let RouterAnswer::Decided(decision) = &mut receipt.verdict {
            decision.prefill = self.prefill;
        }
        receipt.outcome = self.outcome;
    }
}

/// A request's log line until its end. Empty without a decision log.
#[derive(Debug, Default)]
pub(super) struct RequestLogLine {
    /// A copy, since the ring may have dropped the receipt by then.
    receipt: Option<Box<Receipt>>,
    prompt: Option<Arc<PromptBlocks>>,
    text: Option<RequestText>,
}

impl RequestGuard {
    /// Returns whether the request's decision goes into a log, which is read for the prompt's
    /// tokens and what was cached of them.
    pub(crate) fn logs_decisions(&self) -> bool {
        self.recorder.receipts.log.is_some()
    }

    /// Keeps the prompt by which the request is decided.
    pub(crate) fn prompt(&mut self, prompt: Option<&Arc<PromptBlocks>>) {
        if self
            .recorder
            .receipts
            .log
            .as_ref()
            .is_some_and(|log| log.wants_chains())
        {
            self.draft.logged.prompt = prompt.cloned();
        }
    }

    /// Keeps the prompt's text, if the log includes it; it goes nowhere else.
    pub(crate) fn text(&mut self, view: &RequestView<'_>) {
        if self
            .recorder
            .receipts
            .log
            .as_ref()
            .is_some_and(|log| log.wants_text())
        {
            self.draft.logged.text = dialect::opening(view, usize::MAX).map(RequestText::new);
        }
    }

    /// Handles the first publication of the receipt; with an outcome it is complete.
    pub(super) fn log_shown(&mut self, receipt: &Receipt) {
        let Some(log) = &self.recorder.receipts.log else {
            return;
        };
        if receipt.outcome.is_some() {
            log.submit(
                receipt.clone(),
                self.draft.logged.prompt.as_deref(),
                self.draft.logged.text.take(),
            );
        } else {
            self.draft.logged.receipt = Some(Box::new(receipt.clone()));
        }
    }

    /// Submits the line at the end of the request.
    pub(super) fn log_end(&mut self, end: &LogEnding) {
        let (Some(log), Some(mut receipt)) = (
            &self.recorder.receipts.log,
            self.draft.logged.receipt.take(),
        ) else {
            return;
        };
        end.clone().complete(&mut receipt);
        log.submit(
            *receipt,
            self.draft.logged.prompt.as_deref(),
            self.draft.logged.text.take(),
        );
    }
}
