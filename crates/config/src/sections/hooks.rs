//! List `pre_routing_hooks`.

use std::time::Duration;

use settings::{ValueKind, kinds::int};

settings::section! {
    /// A service that is called before a request is routed.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub optional struct HookEntry {
        /// Name of the hook in headers, messages and metrics. Required, unique.
        name: String = "~", live;
        /// URL of the hook, with its path. Required.
        url: String = "~" in ValueKind::WorkerUrl, live;
        /// Time limit of one call.
        timeout: Duration = "1s", live;
        /// Handling of a request if the hook fails or gives no valid answer.
        on_error: HookErrorAction = "reject", live;
        /// Reply to a rejected request, unless the hook's answer defines it.
        on_reject: HookRejection, live;
        /// Models for which the hook is called; `*` matches any text. Empty: all models.
        models: Vec<String> = "[]", live;
    }
}

settings::section! {
    /// Section `pre_routing_hooks[].on_reject`.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct HookRejection {
        /// Status of the reply to a rejected request.
        status: u16 = "403" in int(400, 499), live;
        /// Message to the client. Unset: the hook's message.
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
