//! List `pre_routing_hooks`.

use std::time::Duration;

use settings::{ValueKind, kinds::int};

settings::section! {
    /// A service that is called before a request is routed.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub optional struct HookEntry {
        /// Its name, in headers, messages and metrics. Required, unique.
        name: String = "~", live;
        /// Where it is asked, with its path. Required.
        url: String = "~" in ValueKind::WorkerUrl, live;
        /// Time for its answer.
        timeout: Duration = "1s", live;
        /// What becomes of a request where the hook gives no usable answer.
        on_error: HookErrorAction = "reject", live;
        /// How a rejected request is answered, where the hook does not say.
        on_reject: HookRejection, live;
        /// It is asked only about these models; `*` stands for anything. Empty = about all.
        models: Vec<String> = "[]", live;
    }
}

settings::section! {
    /// Section `pre_routing_hooks[].on_reject`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct HookRejection {
        /// Status of a request that it rejects.
        status: u16 = "403" in int(400, 499), live;
        /// What the client is told; unset = what the hook says.
        message: Option<String> = "~", live;
    }
}

settings::words! {
    /// What becomes of a request where the hook gives no usable answer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum HookErrorAction {
        /// It continues.
        Allow = "allow",
        /// It is rejected.
        Reject = "reject",
    }
}
