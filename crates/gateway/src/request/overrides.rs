//! Overrides of the decision, from a request's headers.

use std::ops::RangeInclusive;

use dialect::{ApiError, ErrorCode};
use http::HeaderMap;
use routing::Policy;

/// The caller's overrides of the decision, from headers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HeaderOverrides {
    /// Worker name, or `name/rank`.
    pub(crate) worker: Option<Box<str>>,
    pub(crate) policy: Option<Policy>,
    pub(crate) overlap_weight: Option<f64>,
    pub(crate) temperature: Option<f64>,
    pub(crate) priority: i32,
}

/// Range of the overlap weight.
pub(crate) const OVERLAP_WEIGHT: RangeInclusive<f64> = 0.0..=100.0;
/// Range of the temperature.
pub(crate) const TEMPERATURE: RangeInclusive<f64> = 0.0..=10.0;
/// Reads the overrides of a request.
pub(super) fn read(headers: &HeaderMap) -> Result<HeaderOverrides, ApiError> {
    let text = |name: &'static str| -> Result<Option<&str>, ApiError> {
        headers
            .get(name)
            .map(|value| value.to_str().map_err(|_| bad(name, "?", "visible ASCII")))
            .transpose()
    };
    let number =
        |name: &'static str, range: RangeInclusive<f64>| -> Result<Option<f64>, ApiError> {
            let Some(value) = text(name)? else {
                return Ok(None);
            };
            let parsed = value
                .trim()
                .parse::<f64>()
                .ok()
                .filter(|number| range.contains(number));
            parsed.map(Some).ok_or_else(|| {
                bad(
                    name,
                    value,
                    &format!("a number from {} to {}", range.start(), range.end()),
                )
            })
        };
    let policy = match text("x-warmroute-policy")? {
        None => None,
        Some(name) => Some(name.trim().parse::<Policy>().map_err(|error| {
            ApiError::new(ErrorCode::UnknownPolicy, error.to_string()).param("x-warmroute-policy")
        })?),
    };
    let priority = match text("x-warmroute-priority")? {
        None => 0,
        Some(value) => value
            .trim()
            .parse::<i32>()
            .ok()
            .filter(|priority| (-100..=100).contains(priority))
            .ok_or_else(|| bad("x-warmroute-priority", value, "an integer from -100 to 100"))?,
    };
    Ok(HeaderOverrides {
        worker: text("x-warmroute-worker")?.map(|name| name.trim().into()),
        policy,
        overlap_weight: number("x-warmroute-overlap-weight", OVERLAP_WEIGHT)?,
        temperature: number("x-warmroute-temperature", TEMPERATURE)?,
        priority,
    })
}

fn bad(name: &'static str, value: &str, expected: &str) -> ApiError {
    ApiError::new(
        ErrorCode::InvalidRequest,
        format!(
            "header {name} is {:?}: expected {expected}",
            printable(value)
        ),
    )
    .param(name)
}

/// Shortens a caller's text for an error message.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}
