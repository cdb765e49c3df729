//! What of a request goes into the decision log.

use std::sync::Arc;

use dialect::RequestView;
use kv_blocks::PromptBlocks;
use routing::{
    PrefillNote,
    receipt::{Attempt, Receipt, RequestOutcome, RouterAnswer},
};

use super::RequestGuard;
use crate::decision_log::RequestText;

/// What is not known yet when a receipt is first shown.
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

/// A request's line, until it is over. Empty where nothing is logged.
#[derive(Debug, Default)]
pub(super) struct RequestLogLine {
    /// Kept apart from the ring, which may have let go of it by then.
    receipt: Option<Box<Receipt>>,
    prompt: Option<Arc<PromptBlocks>>,
    text: Option<RequestText>,
}

impl RequestGuard {
    /// The prompt by which the request is decided.
    pub(crate) fn prompt(&mut self, prompt: Option<&Arc<PromptBlocks>>) {
        if self
            .gateway
            .log
            .as_ref()
            .is_some_and(|log| log.wants_chains())
        {
            self.logged.prompt = prompt.cloned();
        }
    }

    /// The prompt's text, where the log is to have it; nobody else ever does.
    pub(crate) fn text(&mut self, view: &RequestView<'_>) {
        if self
            .gateway
            .log
            .as_ref()
            .is_some_and(|log| log.wants_text())
        {
            self.logged.text = dialect::opening(view, usize::MAX).map(RequestText::new);
        }
    }

    /// The receipt is shown for the first time; with an outcome it is complete.
    pub(super) fn log_shown(&mut self, receipt: &Receipt) {
        let Some(log) = &self.gateway.log else { return };
        if receipt.outcome.is_some() {
            log.submit(
                receipt.clone(),
                self.logged.prompt.as_deref(),
                self.logged.text.take(),
            );
        } else {
            self.logged.receipt = Some(Box::new(receipt.clone()));
        }
    }

    /// The request is over.
    pub(super) fn log_end(&mut self, end: &LogEnding) {
        let (Some(log), Some(mut receipt)) = (&self.gateway.log, self.logged.receipt.take()) else {
            return;
        };
        end.clone().complete(&mut receipt);
        log.submit(
            *receipt,
            self.logged.prompt.as_deref(),
            self.logged.text.take(),
        );
    }
}
