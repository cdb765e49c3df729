//! What the account says to those around it: headers, and requests that wait for the same reply.

use std::sync::{Arc, OnceLock};

use routing::{Method, Policy, receipt::Verdict};

use super::Settle;
use crate::request::{ReplyHeaders, told::Told};

impl Settle {
    /// Others wait for this reply: they want to know whether it may answer more of them.
    pub(crate) fn tells_whether_good(&mut self, good: Arc<OnceLock<bool>>) {
        self.good = Some(good);
    }

    /// Where the end tells whether the reply was whole and right.
    pub(crate) fn good(&mut self) -> Arc<OnceLock<bool>> {
        Arc::clone(self.good.get_or_insert_default())
    }

    /// Another request's reply answers this one: nobody is asked, and the receipt says so.
    pub(crate) fn answered_by(&mut self, method: Method, policy: Policy, status: u16) {
        self.gateway
            .metrics
            .answered_by(policy.as_str(), method.as_str());
        self.status = Some(status);
        self.verdict = Some(Verdict::Answered(method, policy));
        self.publish(None);
    }

    /// What headers tell beside the decision.
    pub(crate) fn told(&mut self) -> &mut Told {
        &mut self.told
    }

    pub(crate) fn told_of(&self) -> &Told {
        &self.told
    }

    /// Which headers of ours and of others the reply carries.
    pub(crate) fn reply_headers(&self) -> ReplyHeaders {
        self.gateway.rules.headers
    }
}
