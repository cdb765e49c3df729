//! Sections `request` and `retry`.

use std::{num::NonZeroU32, time::Duration};

use settings::kinds::{SECONDS_OR_ZERO, int};

settings::section! {
    /// Section `request`.
    #[derive(Clone, Copy, Debug)]
    pub struct RequestSection {
        /// Time limit, over all attempts, for the first byte of a stream or for a whole reply that
        /// is not streamed.
        timeout: Duration = "300s", live;
        /// Maximum number of retries.
        max_retries: u32 = "3" in int(0, 100), live;
        /// First retry delay; applies only if it is set and `retry.base_delay` is not.
        retry_delay: Duration = "1s" in SECONDS_OR_ZERO, live;
        /// Time without a byte after which a stream is cut.
        stream_idle_timeout: Duration = "120s", live;
        /// Longest duration of a stream; a longer one is cut.
        stream_max_duration: Duration = "3600s", live;
        /// Cut a stream that ends without `finish_reason` and without `[DONE]`, with an error
        /// event. `false`: it is passed on unchanged.
        strict_stream_completion: bool = "false", live;
        /// Time limit to open a TCP connection.
        connect_timeout: Duration = "1s", live;
        /// Time without a first byte after which a second worker gets the request too; the first
        /// reply wins. Unset: off.
        hedge_after: Option<Duration> = "~", live;
    }
}

settings::section! {
    /// Section `retry`.
    #[derive(Clone, Copy, Debug)]
    pub struct RetrySection {
        /// Maximum number of attempts, including the first; at most 1 + `request.max_retries`.
        max_attempts: NonZeroU32 = "3" in int(1, 100), live;
        /// First delay before a retry at the same worker.
        base_delay: Duration = "100ms" in SECONDS_OR_ZERO, live;
        /// Longest such delay.
        max_delay: Duration = "30s" in SECONDS_OR_ZERO, live;
        /// Double the delay with each retry.
        exponential_backoff: bool = "true", live;
        /// Draw each delay at random from the upper half of its range.
        jitter: bool = "true", live;
        /// Largest share of the requests in flight that may be retries.
        budget_ratio: f64 = "0.2", live;
    }
}
