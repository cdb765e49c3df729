//! Credential headers of requests to workers.

use http::{HeaderName, HeaderValue, header::AUTHORIZATION};

use crate::EngineKind;

/// The API version that Anthropic's servers require.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// Returns the headers that carry the key for a worker of this kind: `Authorization: Bearer`, or
/// Anthropic's own two. A key that no header can carry is left out; the worker's 401 then reports
/// it.
pub fn credentials(
    engine: EngineKind,
    api_key: Option<&str>,
) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
    let anthropic = engine == EngineKind::Anthropic;
    let key = api_key.and_then(|key| {
        let (name, value) = if anthropic {
            (
                HeaderName::from_static("x-api-key"),
                HeaderValue::try_from(key),
            )
        } else {
            (
                AUTHORIZATION,
                HeaderValue::try_from(format!("Bearer {key}")),
            )
        };
        let mut value = value.ok()?;
        value.set_sensitive(true);
        Some((name, value))
    });
    let version = (
        HeaderName::from_static("anthropic-version"),
        HeaderValue::from_static(ANTHROPIC_VERSION),
    );
    key.into_iter().chain(anthropic.then_some(version))
}
