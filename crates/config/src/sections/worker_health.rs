//! Section `workers[].health_check`.

use std::time::Duration;

use settings::{ValueKind, kinds::STATUS};

settings::section! {
    /// Section `workers[].health_check`.
    #[derive(Clone, Debug, PartialEq)]
    pub struct HealthCheck {
        /// Path asked first; unset = as the type has it.
        endpoint: Option<String> = "~" in ValueKind::UrlPath, live;
        /// Paths asked in order when the first is answered 404; unset = as the type has them.
        fallback_endpoints: Option<Vec<String>> = "~" in ValueKind::List(&ValueKind::UrlPath), live;
        /// How the path is asked; unset = GET (type `anthropic`: POST of `{}`, which costs no
        /// tokens).
        method: Option<CheckMethod> = "~", live;
        /// JSON body of a POST.
        body: Option<serde_json::Value> = "~", live;
        /// Statuses that mean healthy; unset = 200 (type `anthropic`: 200, 400, 401, 429).
        accept_status: Option<Vec<u16>> = "~" in ValueKind::List(&STATUS), live;
        /// Statuses that mean the model is loading.
        warmup_status: Vec<u16> = "[503]" in ValueKind::List(&STATUS), live;
        /// Time for one answer; unset = `health_checks.timeout`.
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
