//! Errors of requests that no worker takes.

use std::{fmt::Display, time::Duration};

use dialect::{ApiError, ErrorCode};
use routing::{QueueLimit, SloNote};
use tenants::{Refusal, Tenant};

use crate::{metrics::SLO, response_affinity};

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

/// Returns the error of a request whose usable workers are not shown to keep its tenant apart.
pub(crate) fn no_isolated_worker() -> ApiError {
    let message = "no worker that serves the model and is shown to keep the caches of tenants apart can be used now \
                   (tenants.isolation: strict): try again";
    ApiError::new(ErrorCode::NoWorker, message).with_retry_after(1)
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

/// Returns the error of a request that would wait longer for room in a cache than it may.
pub(crate) fn no_room(expected: Duration) -> ApiError {
    let seconds = whole_seconds(expected);
    let message = format!(
        "every worker's cache is in use by running sessions, and after a wait of about {seconds} s the request would begin \
         too late for its time limit (routing.admission): try again after the time in Retry-After"
    );
    ApiError::new(ErrorCode::Overloaded, message).with_retry_after(seconds.max(1))
}

/// Returns the error of a request whose first token no worker can send in time: a retry makes sense
/// when the work that is too much is done.
pub(crate) fn slo_missed(miss: &SloNote) -> ApiError {
    let target = miss.targets.ttft.unwrap_or_default();
    let predicted = miss.predicted_ttft.unwrap_or_default();
    let seconds = whole_seconds(predicted.saturating_sub(target)).max(1);
    let message = format!(
        "no worker can send the first token within the target of {} ms (x-warmroute-slo-ttft-ms, tenants.api_keys[].slo_ttft, \
         routing.slo.ttft), {} ms are expected: try again after the time in Retry-After, or with a longer target",
        target.as_millis(),
        predicted.as_millis()
    );
    ApiError::new(ErrorCode::Overloaded, message)
        .because(SLO)
        .with_retry_after(seconds)
}

/// Returns the error of a request for which the queue has no room.
pub(crate) fn queue_full() -> ApiError {
    let message =
        "too many requests wait for a worker (queue.max_entries, queue.max_bytes): try again";
    ApiError::new(ErrorCode::QueueFull, message).with_retry_after(FULL_RETRY_S)
}

/// Returns the error of a request of a tenant that a limit keeps out of the queue.
pub(crate) fn not_queued(limit: QueueLimit, tenant: Option<&Tenant>) -> ApiError {
    let tenant_full =
        |message| ApiError::new(ErrorCode::TenantQueueFull, message).with_retry_after(FULL_RETRY_S);
    match limit {
        QueueLimit::Router => queue_full(),
        QueueLimit::TenantBytes => tenant_full(
            "the requests of the API key's tenant that wait for a worker have as many bytes as they may (half of \
             queue.max_bytes): try again",
        ),
        QueueLimit::Tenant => {
            let error = tenant_full(
                "as many requests of the API key's tenant wait for a worker as may (tenants.defaults.queued): try again",
            );
            match tenant.and_then(|tenant| tenant.queue_share().most_queued) {
                Some(most) => error.with_rate_limit(most),
                None => error,
            }
        }
    }
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

/// Returns the error of a request that its tenant's rules do not let in.
pub(crate) fn refused_by_tenant(refusal: &Refusal) -> ApiError {
    match refusal {
        Refusal::ScopeMissing(scope) => {
            let scope = scope.as_str();
            let message = format!(
                "the API key may not be used on this route: it lacks the scope {scope:?} (tenants.api_keys[].scopes)"
            );
            ApiError::new(ErrorCode::ScopeMissing, message)
        }
        Refusal::RateLimited { per_second, wait } => {
            let message = format!(
                "more than {per_second} requests per second with this API key: try again after the time in Retry-After"
            );
            ApiError::new(ErrorCode::RateLimited, message)
                .with_retry_after(whole_seconds(*wait))
                .with_rate_limit(per_second)
        }
        Refusal::ConcurrencyLimited { most } => {
            let message = format!(
                "{most} requests with this API key run already, at most {most} may: try again when one has ended"
            );
            ApiError::new(ErrorCode::ConcurrencyLimited, message)
                .with_retry_after(1)
                .with_rate_limit(most)
        }
        Refusal::StreamsLimited { most } => {
            let message = format!(
                "{most} replies to this API key's tenant stream already, at most {most} may (tenants.defaults.streams): try again when one has ended"
            );
            ApiError::new(ErrorCode::TenantStreamsFull, message)
                .with_retry_after(1)
                .with_rate_limit(most)
        }
        Refusal::TokensLimited(refused) => {
            let (kind, most) = (refused.kind.as_str(), refused.per_minute);
            let message = format!(
                "the {kind} tokens of this request exceed what is left of {most} per minute with this API key: try again after the time in Retry-After"
            );
            ApiError::new(ErrorCode::TokenLimited, message)
                .with_retry_after(whole_seconds(refused.wait))
                .with_rate_limit(most)
        }
    }
}

/// Returns the error of a request with a wrong key or none, from an address that sent too many wrong
/// ones.
pub(crate) fn too_many_wrong_keys(wait_s: u32) -> ApiError {
    let message = "too many wrong API keys from this address: try again after the time in Retry-After; a right key is \
                   accepted at once";
    ApiError::new(ErrorCode::RateLimited, message).with_retry_after(wait_s)
}

/// Rounds up, so that a client that waits as long finds a token.
fn whole_seconds(wait: Duration) -> u32 {
    let rest = u64::from(wait.subsec_nanos() > 0);
    u32::try_from(wait.as_secs().saturating_add(rest)).unwrap_or(u32::MAX)
}

/// Returns the error of a request for a model that its tenant may not name.
pub(crate) fn model_not_allowed(id: &str) -> ApiError {
    let message = format!(
        "the model {:?} is not allowed with this API key: GET /v1/models lists those that are",
        shown(id)
    );
    ApiError::new(ErrorCode::ModelNotAllowed, message).param("model")
}

/// Returns the error of a request without a model, by a tenant that may name only some.
pub(crate) fn model_not_named() -> ApiError {
    let message = "the request names no model, and this API key may be used for some only: send a JSON object whose \
                   `model` is a text";
    ApiError::new(ErrorCode::ModelNotAllowed, message).param("model")
}

/// Returns the error of a field whose adapter has no name, by a tenant that may name only some.
pub(crate) fn adapter_not_named(field: &str) -> ApiError {
    let message = format!(
        "{field} selects an adapter otherwise than by its name, and this API key may be used for some models only: \
         name the adapter as `model`"
    );
    ApiError::new(ErrorCode::FieldNotAllowed, message).param(field)
}

/// Returns the error of a field under which an engine would not keep the tenant's blocks apart.
pub(crate) fn not_isolated(field: &str) -> ApiError {
    let message = format!(
        "{field} makes engines compute blocks that tenants share: leave it out (tenants.isolation)"
    );
    ApiError::new(ErrorCode::FieldNotAllowed, message).param(field)
}

/// Returns the error of a request to a route whose requests carry no salt; `what`: such requests.
pub(crate) fn carries_no_salt(what: &str) -> ApiError {
    let message = format!(
        "{what} carry nothing by which engines keep the caches of tenants apart, and are not accepted here \
         (tenants.isolation: strict)"
    );
    ApiError::new(ErrorCode::FieldNotAllowed, message)
}

/// Returns the error of an override that the tenant may not make; `field` names it.
pub(crate) fn override_not_allowed(field: &str) -> ApiError {
    let message = format!(
        "{field} overrides the router's decision, which this API key may not: leave it out, or have the scope \
         \"overrides\" granted"
    );
    ApiError::new(ErrorCode::FieldNotAllowed, message).param(field)
}

/// Returns the error of a field for engines that the tenant may not send.
pub(crate) fn engine_field_not_allowed(field: &str) -> ApiError {
    let message = format!(
        "{field} controls the engine, which this API key may not: leave it out, or have it listed in \
         tenants.api_keys[].engine_fields"
    );
    ApiError::new(ErrorCode::FieldNotAllowed, message).param(field)
}

/// Returns the error of a URL that engines may not fetch for the tenant; `field` names it.
pub(crate) fn media_url_not_allowed(field: &str, reason: impl Display) -> ApiError {
    let message = format!(
        "the URL in {field} {reason}, and engines fetch it: send the content as a data: URL (tenants.media_urls)"
    );
    ApiError::new(ErrorCode::FieldNotAllowed, message).param(field)
}

/// Returns the error of a stored response that is not known to be the tenant's; `field` names it.
pub(crate) fn response_not_remembered(id: &str, field: &str) -> ApiError {
    let message = format!(
        "no response {:?} is remembered here: this router remembers the worker of a stored response for {} s and of \
         the latest {} of them, and forgets all when it restarts; create the response again",
        shown(id),
        response_affinity::TTL.as_secs(),
        response_affinity::MOST
    );
    ApiError::new(ErrorCode::ResponseNotFound, message).param(field)
}

/// Returns the error of a request for a model that every worker is known not to serve.
pub(crate) fn model_not_found(id: &str) -> ApiError {
    let id = shown(id);
    ApiError::new(
        ErrorCode::ModelNotFound,
        format!("no worker serves the model {id:?}: GET /v1/models lists those that are served"),
    )
    .param("model")
}

/// Shortens a client's name of something for a message.
fn shown(id: &str) -> String {
    id.chars().filter(|c| !c.is_control()).take(100).collect()
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use routing::SloTargets;

    use super::*;

    #[test]
    fn a_limits_error_says_when_to_try_again_and_what_the_limit_is() {
        for (wait_ms, per_second, retry, limit) in [
            (1, 20.0, 1, "20"),
            (1000, 1.0, 1, "1"),
            (1001, 0.5, 2, "0.5"),
            (600_000, 0.001, 60, "0.001"),
        ] {
            let wait = Duration::from_millis(wait_ms);
            let error = refused_by_tenant(&Refusal::RateLimited { per_second, wait });
            assert_eq!(error.code, ErrorCode::RateLimited);
            assert_eq!(error.retry_after(), Some(retry));
            assert_eq!(error.rate_limit.as_deref(), Some(limit));
        }
        let error = refused_by_tenant(&Refusal::ConcurrencyLimited { most: 4 });
        assert_eq!(error.code, ErrorCode::ConcurrencyLimited);
        assert_eq!(error.rate_limit.as_deref(), Some("4"));
        let error = refused_by_tenant(&Refusal::StreamsLimited { most: 4 });
        assert_eq!(error.code, ErrorCode::TenantStreamsFull);
        assert_eq!(error.retry_after(), Some(1));
    }

    #[test]
    fn a_request_without_room_is_told_its_expected_wait() {
        for (wait_ms, seconds) in [(0, 1), (1, 1), (59_001, 60)] {
            let error = no_room(Duration::from_millis(wait_ms));
            assert_eq!(error.code, ErrorCode::Overloaded);
            assert_eq!(error.retry_after(), Some(seconds), "{wait_ms}");
        }
    }

    #[test]
    fn a_request_that_would_miss_its_target_is_told_both_times_and_when_to_try_again() {
        for (target_ms, predicted_ms, seconds) in [(500, 700, 1), (500, 1500, 1), (500, 4001, 4)] {
            let error = slo_missed(&SloNote {
                targets: SloTargets {
                    ttft: Some(Duration::from_millis(target_ms)),
                    tpot: None,
                },
                predicted_ttft: Some(Duration::from_millis(predicted_ms)),
            });
            assert_eq!((error.code, error.status), (ErrorCode::Overloaded, 503));
            assert_eq!(error.counted_as(), "slo");
            assert_eq!(error.retry_after(), Some(seconds), "{predicted_ms}");
            assert!(error.message.contains(&format!("{target_ms} ms")));
            assert!(error.message.contains(&format!("{predicted_ms} ms")));
        }
    }

    #[test]
    #[contract("S69")]
    fn the_name_of_a_missing_model_cannot_break_a_log_line() {
        let error = model_not_found(&format!("a\n{}", "b".repeat(1000)));
        assert_eq!(error.code, ErrorCode::ModelNotFound);
        assert!(!error.message.contains('\n') && error.message.len() < 250);
    }
}
