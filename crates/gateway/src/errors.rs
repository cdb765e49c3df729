//! Errors of requests that no worker takes.

use dialect::{ApiError, ErrorCode};

/// `Retry-After` if all targets are busy, in seconds: about as long as the usage figure stays
/// valid.
pub(crate) const BUSY_RETRY_S: u32 = 5;
/// `Retry-After` if the queue is full, in seconds.
const FULL_RETRY_S: u32 = 1;

/// Returns the error of a request that no worker can take.
pub(crate) fn no_worker() -> ApiError {
    ApiError::new(
        ErrorCode::NoWorker,
        "no worker that serves the model can be used now: try again",
    )
    .with_retry_after(1)
}

/// Returns the error of a request for which no connection could be opened, whatever its worker.
pub(crate) fn no_connection() -> ApiError {
    let message = "the router is short of something that it needs to connect to workers, which its log names: try again";
    ApiError::new(ErrorCode::Overloaded, message).with_retry_after(1)
}

/// Returns the error of a request whose eligible workers are all above the busy threshold.
pub(crate) fn all_busy() -> ApiError {
    let message = "every worker that could take the request is above the busy threshold: try again";
    ApiError::new(ErrorCode::Overloaded, message).with_retry_after(BUSY_RETRY_S)
}

/// Returns the error of a request for which the queue has no room.
pub(crate) fn queue_full() -> ApiError {
    let message =
        "too many requests wait for a worker (queue.max_entries, queue.max_bytes): try again";
    ApiError::new(ErrorCode::QueueFull, message).with_retry_after(FULL_RETRY_S)
}

/// Returns the error of a request that waited as long as it may while all workers were busy.
pub(crate) fn queue_timeout() -> ApiError {
    let message = "every worker that could take the request stayed above the busy threshold (queue.wait): try again";
    ApiError::new(ErrorCode::QueueTimeout, message).with_retry_after(BUSY_RETRY_S)
}

/// Returns the error of a request that still waited when the router went down.
pub(crate) fn going_down() -> ApiError {
    ApiError::new(
        ErrorCode::Draining,
        "the router is going down, and the request was still waiting: try again",
    )
    .with_retry_after(1)
}

/// Returns the error of a request for a model that every worker is known not to serve.
pub(crate) fn model_not_found(id: &str) -> ApiError {
    let id: String = id.chars().filter(|c| !c.is_control()).take(100).collect();
    ApiError::new(
        ErrorCode::ModelNotFound,
        format!("no worker serves the model {id:?}: GET /v1/models lists those that are served"),
    )
    .param("model")
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("S69")]
    fn the_name_of_a_missing_model_cannot_break_a_log_line() {
        let error = model_not_found(&format!("a\n{}", "b".repeat(1000)));
        assert_eq!(error.code, ErrorCode::ModelNotFound);
        assert!(!error.message.contains('\n') && error.message.len() < 250);
    }
}
