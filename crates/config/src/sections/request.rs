//! Sections `request` and `retry`.

use std::{num::NonZeroU32, time::Duration};

use settings::kinds::{SECONDS_OR_ZERO, int};

settings::section! {
    /// Section `request`.
    #[derive(Clone, Debug)]
    pub struct RequestSection {
        /// Time for a stream's first byte, or for a whole other reply, over all attempts.
        timeout: Duration = "300s", live;
        /// Most times a request is sent again.
        max_retries: u32 = "3" in int(0, 100), live;
        /// First delay; counts only when set while `retry.base_delay` is not.
        retry_delay: Duration = "1s" in SECONDS_OR_ZERO, live;
        /// A stream without a byte for this long is cut.
        stream_idle_timeout: Duration = "120s", live;
        /// A stream is cut after this in any case.
        stream_max_duration: Duration = "3600s", live;
        /// A stream that the engine ends without `finish_reason` and without `[DONE]` is cut with
        /// an error event, instead of passing as it is.
        strict_stream_completion: bool = "false", live;
        /// Time for one TCP connect.
        connect_timeout: Duration = "1s", live;
        /// Where no byte came within this, another worker is asked too, and the first to answer
        /// counts; unset = off.
        hedge_after: Option<Duration> = "~", live;
    }
}

settings::section! {
    /// Section `retry`.
    #[derive(Clone, Debug)]
    pub struct RetrySection {
        /// Most times a request is sent, the first included; at most 1 + `request.max_retries`.
        max_attempts: NonZeroU32 = "3" in int(1, 100), live;
        /// First delay before the same worker is tried again.
        base_delay: Duration = "100ms" in SECONDS_OR_ZERO, live;
        /// Longest delay.
        max_delay: Duration = "30s" in SECONDS_OR_ZERO, live;
        /// Double the delay each time.
        exponential_backoff: bool = "true", live;
        /// Draw the delay from its upper half.
        jitter: bool = "true", live;
        /// Retries in flight over requests in flight, at most.
        budget_ratio: f64 = "0.2", live;
    }
}
