//! The properties of a request's body, and the digests that equal requests share.

use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use dialect::{LastQuestion, RepeatabilityView, RequestKey, Temperature};
use http::HeaderMap;

use super::CacheRequest;

/// Headers that change the engine's reply.
const RELEVANT: [&str; 4] = [
    "anthropic-beta",
    "anthropic-version",
    "openai-beta",
    "x-cache-salt",
];
/// Credential headers of engines and clients.
const CREDENTIALS: [&str; 5] = [
    "authorization",
    "x-api-key",
    "api-key",
    "x-router-key",
    "cookie",
];
/// The digest of a longer body is computed off the runtime thread.
const LONG_BODY: usize = 64 * 1024;

/// The properties of a body that decide about the request's eligibility.
#[derive(Clone, Debug)]
pub struct BodyProperties {
    /// The digests that equal requests share; `None` where only a worker may answer.
    pub digests: Option<RequestDigests>,
    /// The requested model.
    pub model: Arc<str>,
    pub(super) asks_repeatable: bool,
    pub(super) temperature: Temperature,
    /// The requested form of the reply.
    pub form: RequestedForm,
}

/// The digests of a request: its content, and the form of its reply.
#[derive(Clone, Copy, Debug)]
pub struct RequestDigests {
    /// The key of its reply in the cache.
    pub key: RequestKey,
    pub(super) form: RequestKey,
}

/// The requested form of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedForm {
    /// One object.
    Whole,
    /// A stream of chunks.
    Stream {
        /// Whether the stream reports its usage.
        usage: bool,
    },
    /// A stream with options that a replay cannot reproduce.
    OtherStream,
}

impl BodyProperties {
    pub(super) async fn read(request: CacheRequest<'_>) -> Option<Self> {
        let (body, target, headers) = (request.body, request.target, request.headers);
        if body.len() <= LONG_BODY {
            return Self::compute(body, target, headers);
        }
        let (body, target, headers) = (body.clone(), target.to_owned(), headers.clone());
        runtime::spawn_blocking(move || Self::compute(&body, &target, &headers))
            .await
            .ok()
            .flatten()
    }

    fn compute(body: &[u8], target: &str, headers: &HeaderMap) -> Option<Self> {
        let view = RepeatabilityView::read(body)?;
        let (temperature, asks_repeatable) = (view.temperature(), view.asks_repeatable());
        // Most bodies are neither cached nor coalesced, and may be long.
        let may_be_same = asks_repeatable || temperature != Temperature::Other;
        let digests = || RequestDigests {
            key: view.key(&tenant(headers), target, &relevant(headers)),
            form: view.form(),
        };
        Some(Self {
            digests: may_be_same.then(digests),
            model: view.model().unwrap_or_default().into(),
            asks_repeatable,
            temperature,
            form: match (view.stream(), view.other_stream_options()) {
                (false, _) => RequestedForm::Whole,
                (true, false) => RequestedForm::Stream {
                    usage: view.include_usage(),
                },
                (true, true) => RequestedForm::OtherStream,
            },
        })
    }
}

impl CacheRequest<'_> {
    /// Splits off the last question from the rest of the request.
    pub fn last_question(&self) -> Option<LastQuestion> {
        // Its digest would block this runtime thread.
        if self.body.len() > LONG_BODY {
            return None;
        }
        let (tenant, headers) = (tenant(self.headers), relevant(self.headers));
        dialect::last_question(self.dialect, self.body, &tenant, self.target, &headers)
    }
}

fn relevant(headers: &HeaderMap) -> Vec<(&str, &[u8])> {
    let values = |name: &'static str| {
        let values = headers.get_all(name).iter();
        values.map(move |value| (name, value.as_bytes()))
    };
    RELEVANT.into_iter().flat_map(values).collect()
}

/// Returns the tenant: no tenant gets another's reply. Other credentials are another tenant, even
/// where only an engine can verify them.
fn tenant(headers: &HeaderMap) -> String {
    let mut digest = Context::new(&SHA256);
    let mut any = false;
    for name in CREDENTIALS {
        for value in headers.get_all(name) {
            any = true;
            for part in [name.as_bytes(), value.as_bytes()] {
                digest.update(&(part.len() as u64).to_le_bytes());
                digest.update(part);
            }
        }
    }
    if any {
        let digest = digest.finish();
        let bytes = digest.as_ref().iter();
        bytes.map(|byte| format!("{byte:02x}")).collect()
    } else {
        "default".to_owned()
    }
}
