//! Section `routing.slo`: latency targets.

use std::time::Duration;

use crate::SloTargets;

settings::section! {
    /// Section `routing.slo`: latency targets of requests whose headers and tenants name none.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SloSection {
        /// Target for the time from a request's arrival to its first token: the queue orders requests
        /// by the slack that it leaves. Unset: no target.
        ttft: Option<Duration> = "~", live, simulated;
        /// Target for the mean time between the later tokens of a reply, which is only counted.
        /// Unset: no target.
        tpot: Option<Duration> = "~", live;
        /// Refuse a request at its arrival when no worker can send its first token in time. The reply
        /// is 503 with a computed `Retry-After`. Policies without a time model refuse none.
        refuse: bool = "false", live, simulated;
    }
}

impl SloSection {
    /// Returns the targets.
    pub fn targets(&self) -> SloTargets {
        SloTargets {
            ttft: self.ttft,
            tpot: self.tpot,
        }
    }
}
