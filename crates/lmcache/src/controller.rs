//! The handle of one controller, and the task that polls it.

use std::{convert::Infallible, sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header::AUTHORIZATION};
use net::{
    Destinations, WorkerUrl,
    fetch::{self, FetchError, FetchedReply},
};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use resilience::Backoff;
use routing::{LmcacheMode, LmcacheSection};
use supervision::supervise;
use tokio::{
    sync::Semaphore,
    task::JoinHandle,
    time::{sleep, timeout},
};

use crate::{
    LookupResult, MatchedTokens, Occupancy,
    gate::AvailabilityGate,
    reply::{self, LOOKUP_BYTES, WORKERS_BYTES},
    telemetry::LmcacheTelemetry,
};

const WORKERS: &str = "/controller/workers";
const LOOKUP: &str = "/lookup";
/// Limit of leading prompt tokens in a lookup: enough to find the holders, and half a millisecond
/// to write.
const MOST_TOKENS: usize = 1 << 16;
/// Limit of concurrent lookups; a request beyond it uses the occupancy of the workers.
const MAX_LOOKUPS: usize = 64;
/// Size up to which a reply is parsed on the async thread, in bytes: a fraction of a millisecond.
const SHORT: usize = 16 << 10;
/// Tokens of the lookup that tests whether the controller answers again. They belong to no prompt.
const PROBE: &[u32] = &[0];
/// First pause before a failed controller is polled again; it doubles each time, up to the poll
/// interval.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Pause before the first lookup after one that missed its budget.
const REST: Duration = Duration::from_secs(1);

/// One controller. Dropping it, or [`Controller::stop`], ends its task.
#[derive(Debug)]
pub struct Controller {
    inner: Arc<ControllerInner>,
    /// Taken by the first [`Controller::stop`].
    task: Mutex<Option<JoinHandle<Infallible>>>,
}

#[derive(Debug)]
struct ControllerInner {
    section: LmcacheSection,
    url: WorkerUrl,
    headers: HeaderMap,
    /// Result of the latest poll, if that was answered.
    occupancy: ArcSwapOption<Occupancy>,
    gate: AvailabilityGate,
    permits: Semaphore,
    telemetry: LmcacheTelemetry,
}

/// The reason why a lookup has no result.
#[derive(Debug, thiserror::Error)]
enum LookupFailure {
    /// No answer within the time limit.
    #[error(transparent)]
    Unreachable(FetchError),
    /// An answer without usable content.
    #[error("{0}")]
    Unusable(String),
}

impl Controller {
    /// Starts the polling task and returns at once. `None`: the section has no valid URL, which is
    /// refused with the configuration. Call inside a tokio runtime.
    pub fn start(section: &LmcacheSection, registry: &mut Registry) -> Option<Self> {
        let url: WorkerUrl = section.controller_url.parse().ok()?;
        let key = section.controller_api_key.as_ref();
        let inner = Arc::new(ControllerInner {
            section: section.clone(),
            url: url.only_at(Destinations::Engines),
            headers: key
                .and_then(|key| bearer(key.expose()))
                .map(|value| (AUTHORIZATION, value))
                .into_iter()
                .collect(),
            occupancy: ArcSwapOption::empty(),
            gate: AvailabilityGate::default(),
            permits: Semaphore::new(MAX_LOOKUPS),
            telemetry: LmcacheTelemetry::registered(registry),
        });
        let task_inner = Arc::clone(&inner);
        let task = runtime::spawn(async move {
            // The latest state is in `inner`, so a restart loses nothing.
            supervise("lmcache_controller", || run_polling(&task_inner)).await
        });
        Some(Self {
            inner,
            task: Mutex::new(Some(task)),
        })
    }

    /// Returns the occupancy of each worker, as of the latest poll; `None`: the controller did not
    /// answer it.
    pub fn occupancy(&self) -> Option<Arc<Occupancy>> {
        self.inner.occupancy.load_full()
    }

    /// Returns how much of the prompt with these tokens each worker holds; `None`: no lookup was
    /// made, or it was not answered in time.
    ///
    /// `tokens` is `None` where they are not known. Under [`LmcacheMode::Occupancy`] no lookup is
    /// ever made.
    pub async fn matched(&self, tokens: Option<&[u32]>) -> Option<MatchedTokens> {
        if self.inner.section.mode == LmcacheMode::Occupancy {
            return None;
        }
        let (result, matched) = match self.inner.matched(tokens).await {
            Ok(matched) if matched.is_empty() => (LookupResult::Nothing, Some(matched)),
            Ok(matched) => (LookupResult::Matched, Some(matched)),
            Err(result) => (result, None),
        };
        self.inner.telemetry.record_lookup(result);
        matched
    }

    /// Stops the task and awaits its end. A second call returns at once.
    pub async fn stop(&self) {
        let task = self.task.lock().take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

/// Polls the occupancy of each worker, and tests whether lookups are answered while requests do not
/// try them.
async fn run_polling(inner: &ControllerInner) -> Infallible {
    let every = inner.section.poll_interval;
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    loop {
        if inner.poll_once().await {
            backoff.reset();
            if timeout(every, inner.gate.closes()).await.is_ok() {
                sleep(REST.min(every)).await;
            }
        } else {
            sleep(backoff.pause().min(every)).await;
        }
    }
}

impl ControllerInner {
    /// Polls the controller; returns whether it answers every query.
    async fn poll_once(&self) -> bool {
        let polled = match self.poll().await {
            Ok(occupancy) => {
                self.telemetry.polled(Some(occupancy.workers()));
                if self.occupancy.swap(Some(Arc::new(occupancy))).is_none() {
                    tracing::info!(controller = %self.url, "the lmcache controller answers");
                }
                true
            }
            Err(failure) => {
                self.telemetry.polled(None);
                if self.occupancy.swap(None).is_some() {
                    tracing::warn!(trouble = %failure, "the lmcache controller does not say who holds what: going on without it");
                } else {
                    tracing::debug!(trouble = %failure, "still no word from the lmcache controller");
                }
                if matches!(failure, LookupFailure::Unreachable(_)) {
                    self.gate.close();
                    return false;
                }
                false
            }
        };
        self.lookups_are_answered().await && polled
    }

    async fn lookups_are_answered(&self) -> bool {
        if self.section.mode == LmcacheMode::Occupancy || self.gate.is_open() {
            return true;
        }
        match self.query(PROBE).await {
            Err(LookupFailure::Unreachable(why)) => {
                tracing::debug!(%why, "lookups of the lmcache controller are not answered in time");
                false
            }
            // Whatever the answer was, it came in time.
            Ok(_) | Err(LookupFailure::Unusable(_)) => {
                self.gate.open();
                true
            }
        }
    }

    async fn poll(&self) -> Result<Occupancy, LookupFailure> {
        let timeout = self.section.controller_timeout;
        let fetched =
            answered(fetch::get(&self.url, WORKERS, &self.headers, timeout, WORKERS_BYTES).await)?;
        let chunks = read(fetched, reply::workers).await?;
        Ok(Occupancy::of(&chunks, &self.section.worker_map))
    }

    async fn matched(&self, tokens: Option<&[u32]>) -> Result<MatchedTokens, LookupResult> {
        let tokens = tokens
            .filter(|tokens| !tokens.is_empty())
            .ok_or(LookupResult::NoTokens)?;
        if !self.gate.is_open() {
            return Err(LookupResult::Unreachable);
        }
        // The semaphore is never closed.
        let _permit = self.permits.try_acquire().map_err(|_| LookupResult::Busy)?;
        match self.query(tokens).await {
            Ok(matched) => Ok(matched),
            Err(LookupFailure::Unreachable(why)) => {
                if self.gate.close() {
                    tracing::warn!(%why, "no request waits for the lmcache controller until it answers in time again");
                }
                Err(if matches!(why, FetchError::TimedOut { .. }) {
                    LookupResult::Late
                } else {
                    LookupResult::Failed
                })
            }
            Err(LookupFailure::Unusable(why)) => {
                tracing::debug!(
                    why,
                    "the lmcache controller does not say who holds a prompt"
                );
                Err(LookupResult::Failed)
            }
        }
    }

    async fn query(&self, tokens: &[u32]) -> Result<MatchedTokens, LookupFailure> {
        let tokens = &tokens[..tokens.len().min(MOST_TOKENS)];
        let budget = self
            .section
            .lookup_budget
            .min(self.section.controller_timeout);
        let body = Some(lookup_body(tokens));
        let fetched = answered(
            fetch::post(&self.url, LOOKUP, &self.headers, body, budget, LOOKUP_BYTES).await,
        )?;
        let layout = read(fetched, reply::layout).await?;
        Ok(MatchedTokens::of(
            layout,
            &self.section.worker_map,
            u32::try_from(tokens.len()).unwrap_or(u32::MAX),
        ))
    }
}

/// Returns a key as the `authorization` header of a query, hidden in debug output. `None`: no header
/// can carry it.
fn bearer(key: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(format!("Bearer {key}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Parses a reply. A long one is parsed on a blocking thread.
async fn read<T: Send + 'static>(
    body: Bytes,
    read: fn(&[u8]) -> Result<T, reply::ReplyError>,
) -> Result<T, LookupFailure> {
    if body.len() <= SHORT {
        return read(&body).map_err(unusable);
    }
    runtime::spawn_blocking(move || read(&body))
        .await
        .map_err(unusable)?
        .map_err(unusable)
}

fn lookup_body(tokens: &[u32]) -> Bytes {
    // Token ids of today's vocabularies have at most six digits, and a comma.
    let mut body = Vec::with_capacity(16 + 7 * tokens.len());
    body.extend_from_slice(b"{\"tokens\":");
    // A vector accepts every write, and numbers always serialize.
    let _ = serde_json::to_writer(&mut body, tokens);
    body.push(b'}');
    body.into()
}

/// Returns the body of a successful reply.
fn answered(fetched: Result<FetchedReply, FetchError>) -> Result<Bytes, LookupFailure> {
    match fetched {
        Ok(fetched) if fetched.status == StatusCode::OK => Ok(fetched.body),
        Ok(fetched) => Err(LookupFailure::Unusable(format!(
            "status {} in place of 200",
            fetched.status.as_u16()
        ))),
        Err(why @ (FetchError::TooLarge { .. } | FetchError::Request { .. })) => Err(unusable(why)),
        Err(why) => Err(LookupFailure::Unreachable(why)),
    }
}

fn unusable(why: impl std::fmt::Display) -> LookupFailure {
    LookupFailure::Unusable(why.to_string())
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("V29")]
    fn the_api_key_is_a_bearer_token_and_never_displayed() {
        let value = bearer("sk-hush").expect("it can stand in a header");
        assert_eq!(value.as_bytes(), b"Bearer sk-hush");
        assert!(!format!("{value:?}").contains("hush"));
        assert_eq!(bearer("two\nlines"), None);
    }

    #[test]
    #[contract("V30")]
    fn the_lookup_request_is_a_list_of_token_ids() {
        assert_eq!(
            &*lookup_body(&[128_000, 0, 4_294_967_295]),
            br#"{"tokens":[128000,0,4294967295]}"#
        );
        assert_eq!(&*lookup_body(&[]), br#"{"tokens":[]}"#);
    }
}
