//! What the account says to those around it: headers, and requests that wait for the same reply.

use std::sync::{Arc, OnceLock};

use routing::{Method, Policy, receipt::RouterAnswer};

use super::RequestGuard;
use crate::request::{ReplyHeaders, routing_notes::RoutingNotes};

impl RequestGuard {
    /// Others wait for this reply: they want to know whether it may answer more of them.
    pub(crate) fn share_outcome(&mut self, good: Arc<OnceLock<bool>>) {
        self.outcome = Some(good);
    }

    /// Where the end tells whether the reply was whole and right.
    pub(crate) fn shared_outcome(&mut self) -> Arc<OnceLock<bool>> {
        Arc::clone(self.outcome.get_or_insert_default())
    }

    /// Another request's reply answers this one: nobody is asked, and the receipt says so.
    pub(crate) fn record_shared_reply(&mut self, method: Method, policy: Policy, status: u16) {
        self.gateway
            .metrics
            .record_method(policy.as_str(), method.as_str());
        self.status = Some(status);
        self.verdict = Some(RouterAnswer::Answered(method, policy));
        self.publish(None);
    }

    /// What headers tell beside the decision.
    pub(crate) fn notes(&mut self) -> &mut RoutingNotes {
        &mut self.notes
    }

    pub(crate) fn told_of(&self) -> &RoutingNotes {
        &self.notes
    }

    /// Which headers of ours and of others the reply carries.
    pub(crate) fn reply_headers(&self) -> ReplyHeaders {
        self.gateway.rules.headers
    }
}
