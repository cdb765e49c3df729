//! The guard's results for other parts: reply headers, and coalesced requests.

use std::sync::{Arc, OnceLock};

use config::CompatSection;
use routing::{Method, Policy, receipt::RouterAnswer};

use super::RequestGuard;
use crate::request::routing_notes::RoutingNotes;

impl RequestGuard {
    /// Sets the cell for the outcome: followers read from it whether the reply may answer more
    /// requests.
    pub(crate) fn share_outcome(&mut self, good: Arc<OnceLock<bool>>) {
        self.outcome = Some(good);
    }

    /// Returns the cell that the end sets: whether the reply was whole and correct.
    pub(crate) fn shared_outcome(&mut self) -> Arc<OnceLock<bool>> {
        Arc::clone(self.outcome.get_or_insert_default())
    }

    /// Records that another request's reply answers this one; the receipt shows that no worker was
    /// chosen.
    pub(crate) fn record_shared_reply(&mut self, method: Method, policy: Policy, status: u16) {
        self.recorder
            .metrics
            .record_method(policy.as_str(), method.as_str());
        self.reply.status = Some(status);
        self.draft.verdict = Some(RouterAnswer::Answered(method, policy));
        self.publish(None);
    }

    /// Returns the notes for reply headers.
    pub(crate) fn notes(&mut self) -> &mut RoutingNotes {
        &mut self.draft.notes
    }

    pub(crate) fn told_of(&self) -> &RoutingNotes {
        &self.draft.notes
    }

    /// Returns the settings of the reply's routing headers.
    pub(crate) fn reply_headers(&self) -> &CompatSection {
        &self.recorder.compat
    }
}
