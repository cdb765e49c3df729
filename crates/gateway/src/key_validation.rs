//! Validation of client keys by services of the operator.
//!
//! **Invariants**: a key passes only if a service has accepted it within the time to live; no
//! request waits for a service while it is known to be away, nor while too many already wait.

use std::{sync::Arc, time::Duration};

use dialect::{ApiError, ErrorCode};
use http::{
    HeaderMap, HeaderValue,
    header::{ACCEPT, AUTHORIZATION},
};
use net::{Clock, Destinations, WorkerUrl, fetch};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use resilience::{Backoff, CircuitBreaker, Singleflight};
use tenants::{KeyDigest, KeyValidation, KnownKey, ValidatedKeys};
use tokio::sync::Semaphore;

/// Most concurrent questions; a request beyond that is refused.
const MOST_QUESTIONS: usize = 64;
/// Most concurrent questions about keys that pass meanwhile, which unknown keys cannot take away.
const MOST_RENEWALS: usize = 16;
/// Longest key that is asked about, in bytes: a longer one may be more than the service's limit of a
/// head.
const LONGEST_KEY: usize = 1024;
/// Pauses after a failure, during which no request waits.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Size limit of an answer, of which only the status counts.
const MOST_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// What the services say about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyAnswer {
    Accepted,
    Refused,
    /// None of them accepts it, and one cannot say.
    Unavailable,
}

impl KeyAnswer {
    const ALL: [Self; 3] = [Self::Accepted, Self::Refused, Self::Unavailable];

    /// What a status says. One about the request itself is about this key, so it is no sign that the
    /// service is away.
    fn of(status: u16) -> Self {
        match status {
            200 => Self::Accepted,
            408 | 425 | 429 => Self::Unavailable,
            400..500 => Self::Refused,
            _ => Self::Unavailable,
        }
    }

    fn label(self) -> ResultLabel {
        let result = match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
        };
        ResultLabel { result }
    }
}

/// Asks the services about keys.
#[derive(Debug)]
pub(crate) struct KeyValidator {
    services: Vec<ValidationService>,
    clock: Clock,
    questions: Semaphore,
    renewals: Semaphore,
    breaker: Mutex<CircuitBreaker>,
    flights: Singleflight<KeyDigest, tokio::sync::Mutex<()>>,
    answers: Family<ResultLabel, Counter>,
    up: Gauge,
}

#[derive(Debug)]
struct ValidationService {
    /// The URL without its path, and the path.
    origin: WorkerUrl,
    path: String,
    timeout: Duration,
}

impl KeyValidator {
    /// Creates the validator, if there is a service.
    pub(crate) fn new(
        settings: &[KeyValidation],
        clock: Clock,
        registry: &mut Registry,
    ) -> Option<Arc<Self>> {
        let services: Vec<_> = settings.iter().filter_map(ValidationService::new).collect();
        let (answers, up) = (Family::<ResultLabel, Counter>::default(), Gauge::default());
        for answer in KeyAnswer::ALL {
            drop(answers.get_or_create(&answer.label()));
        }
        up.set(1);
        let help = "Answers of the services that validate keys";
        registry.register("warmroute_key_validations", help, answers.clone());
        let help = "Whether the services that validate keys answer";
        registry.register("warmroute_key_validation_up", help, up.clone());
        (!services.is_empty()).then(|| {
            Arc::new(Self {
                services,
                clock,
                questions: Semaphore::new(MOST_QUESTIONS),
                renewals: Semaphore::new(MOST_RENEWALS),
                breaker: Mutex::new(CircuitBreaker::new(
                    1,
                    Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
                )),
                flights: Singleflight::default(),
                answers,
                up,
            })
        })
    }

    /// Makes sure that `keys` know whether a key passes. `may_ask`: whether the client of an unknown
    /// key may have it asked about. An error is the client's reply: also where no service can say.
    pub(crate) async fn learn(
        self: &Arc<Self>,
        keys: &Arc<ValidatedKeys>,
        key: &[u8],
        may_ask: impl FnOnce() -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let digest = KeyDigest::of(key);
        match keys.find(digest, self.clock.now()) {
            KnownKey::Unknown => may_ask()?,
            KnownKey::Accepted { is_ageing, .. } => {
                if is_ageing {
                    self.renew(keys, key, digest);
                }
                return Ok(());
            }
            KnownKey::Refused => return Ok(()),
        }
        let flight = self.flights.join(digest);
        let _turn = flight.lock().await;
        // Another request may have asked meanwhile.
        if !matches!(keys.find(digest, self.clock.now()), KnownKey::Unknown) {
            return Ok(());
        }
        match self.ask(keys, (key, digest), &self.questions).await {
            KeyAnswer::Accepted | KeyAnswer::Refused => Ok(()),
            KeyAnswer::Unavailable => Err(unavailable()),
        }
    }

    /// Asks about a key that passes meanwhile, unless another request does.
    fn renew(self: &Arc<Self>, keys: &Arc<ValidatedKeys>, key: &[u8], digest: KeyDigest) {
        if self.is_paused() {
            return;
        }
        let (validator, keys, key) = (Arc::clone(self), Arc::clone(keys), key.to_vec());
        let flight = self.flights.join(digest);
        runtime::spawn(async move {
            let Ok(_turn) = flight.try_lock() else { return };
            let known = keys.find(digest, validator.clock.now());
            if matches!(known, KnownKey::Accepted { is_ageing, .. } if is_ageing) {
                let asked = (key.as_slice(), digest);
                validator.ask(&keys, asked, &validator.renewals).await;
            }
        });
    }

    fn is_paused(&self) -> bool {
        self.breaker.lock().is_open(self.clock.now())
    }

    /// Asks the services in turn and records what they say.
    async fn ask(
        &self,
        keys: &ValidatedKeys,
        (key, digest): (&[u8], KeyDigest),
        permits: &Semaphore,
    ) -> KeyAnswer {
        if self.is_paused() {
            return KeyAnswer::Unavailable;
        }
        // Never closed; none left means that the services are far behind.
        let Ok(_permit) = permits.try_acquire() else {
            return KeyAnswer::Unavailable;
        };
        let asked = self.clock.now();
        let answer = self.answer(key).await;
        self.answers.get_or_create(&answer.label()).inc();
        let now = self.clock.now();
        match answer {
            // A service may take its time after it has decided.
            KeyAnswer::Accepted => keys.accept(digest, asked),
            KeyAnswer::Refused => keys.refuse(digest, now),
            KeyAnswer::Unavailable => {
                let mut breaker = self.breaker.lock();
                if !breaker.is_open(now) {
                    breaker.record_failure(now);
                }
                drop(breaker);
                if self.up.set(0) == 1 {
                    tracing::warn!(
                        "no service can say whether keys are valid: known keys pass on for a while"
                    );
                }
                return answer;
            }
        }
        self.breaker.lock().record_success();
        self.up.set(1);
        answer
    }

    async fn answer(&self, key: &[u8]) -> KeyAnswer {
        if key.len() > LONGEST_KEY || !key.is_ascii() {
            return KeyAnswer::Refused;
        }
        let mut headers = HeaderMap::new();
        let Ok(mut bearer) = HeaderValue::from_bytes(&[b"Bearer ", key].concat()) else {
            return KeyAnswer::Refused;
        };
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        let mut answer = KeyAnswer::Refused;
        for service in &self.services {
            match service.ask(&headers).await {
                KeyAnswer::Accepted => return KeyAnswer::Accepted,
                KeyAnswer::Refused => {}
                KeyAnswer::Unavailable => answer = KeyAnswer::Unavailable,
            }
        }
        answer
    }
}

impl ValidationService {
    /// Returns a service; its URL was checked with the configuration.
    fn new(settings: &KeyValidation) -> Option<Self> {
        let (origin, path) = settings.url.parse::<WorkerUrl>().ok()?.into_origin();
        Some(Self {
            origin: origin.only_at(Destinations::Engines),
            path,
            timeout: settings.timeout,
        })
    }

    async fn ask(&self, headers: &HeaderMap) -> KeyAnswer {
        match fetch::get(&self.origin, &self.path, headers, self.timeout, MOST_BYTES).await {
            Ok(reply) => KeyAnswer::of(reply.status.as_u16()),
            Err(error) => {
                tracing::debug!(%error, "a service that validates keys gave no answer");
                KeyAnswer::Unavailable
            }
        }
    }
}

/// Returns the error of a request whose key no service can judge.
pub(crate) fn unavailable() -> ApiError {
    ApiError::new(
        ErrorCode::KeyValidationFailed,
        "the API key could not be validated now: try again",
    )
    .with_retry_after(1)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("V33", "F94")]
    fn only_200_accepts_a_key_and_only_a_status_about_the_request_refuses_it() {
        for status in 100..600 {
            let expected = match status {
                200 => KeyAnswer::Accepted,
                408 | 425 | 429 => KeyAnswer::Unavailable,
                400..=499 => KeyAnswer::Refused,
                _ => KeyAnswer::Unavailable,
            };
            assert_eq!(KeyAnswer::of(status), expected, "{status}");
        }
    }
}
