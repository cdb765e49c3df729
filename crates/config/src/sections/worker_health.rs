//! Section `workers[].health_check`.

use std::time::Duration;

use settings::{ValueKind, kinds::STATUS};

settings::section! {
    /// Section `workers[].health_check`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct HealthCheck {
        /// Path of the check. Unset: that of the worker's type.
        endpoint: Option<String> = "~" in ValueKind::UrlPath, live;
        /// Paths to try in order if the first one returns 404. Unset: those of the worker's type.
        fallback_endpoints: Option<Vec<String>> = "~" in ValueKind::List(&ValueKind::UrlPath), live;
        /// Method of the check. Unset: GET (type `anthropic`: POST of `{}`, which costs no tokens).
        method: Option<CheckMethod> = "~", live;
        /// JSON body of the check. Needs the method POST.
        body: Option<serde_json::Value> = "~", live;
        /// Statuses of a healthy worker. Unset: 200 (type `anthropic`: 200, 400, 401, 429).
        accept_status: Option<Vec<u16>> = "~" in ValueKind::List(&STATUS), live;
        /// Statuses of a worker that is loading its model.
        warmup_status: Vec<u16> = "[503]" in ValueKind::List(&STATUS), live;
        /// Time limit of one check, also above `health_checks.timeout`, which is the default.
        timeout: Option<Duration> = "~", live;
    }
}

settings::words! {
    /// `workers[].health_check.method`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum CheckMethod {
        /// GET
        Get = "GET",
        /// POST
        Post = "POST",
        /// HEAD
        Head = "HEAD",
    }
}
