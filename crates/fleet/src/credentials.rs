//! What a request to a worker carries so that it is let in.

use http::{HeaderName, HeaderValue, header::AUTHORIZATION};

use crate::EngineKind;

/// The version of its API that Anthropic's servers want to be told.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// The fields that a worker of this kind wants with its key: `Authorization: Bearer`, or Anthropic's own two. A key that no
/// header can carry is left out: the worker's 401 then says so.
pub fn credentials(
    engine: EngineKind,
    api_key: Option<&str>,
) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
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
