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
/// The headers that override the decision.
const HEADERS: [&str; 5] = [
    "x-warmroute-worker",
    "x-warmroute-policy",
    "x-warmroute-overlap-weight",
    "x-warmroute-temperature",
    "x-warmroute-priority",
];

/// Returns the first override header of a request.
pub(super) fn first(headers: &HeaderMap) -> Option<&'static str> {
    HEADERS.into_iter().find(|name| headers.contains_key(*name))
}

/// Reads the overrides of a request, which has this priority if it names none.
pub(super) fn read(headers: &HeaderMap, usual_priority: i32) -> Result<HeaderOverrides, ApiError> {
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
        None => usual_priority,
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

/// Returns the error of a header with this value.
pub(super) fn bad(name: &'static str, value: &str, expected: &str) -> ApiError {
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

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use http::HeaderValue;

    use super::*;

    fn read_one(name: &'static str, value: &str) -> Result<HeaderOverrides, ApiError> {
        let mut headers = HeaderMap::new();
        headers.insert(name, HeaderValue::try_from(value).expect("a value"));
        read(&headers, 0)
    }

    #[test]
    fn each_header_sets_its_own_override_and_none_is_set_without_one() {
        let with = |name, value| read_one(name, value).expect("a good value");
        let usual = HeaderOverrides::default();
        assert_eq!(read(&HeaderMap::new(), 0).expect("nothing is wrong"), usual);
        assert_eq!(first(&HeaderMap::new()), None);
        for name in HEADERS {
            let headers =
                HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static("1"))]);
            assert_eq!(first(&headers), Some(name));
        }
        let worker = with("x-warmroute-worker", " w1/2 ");
        assert_eq!(worker.worker.as_deref(), Some("w1/2"));
        let policy = with("x-warmroute-policy", "round_robin");
        assert_eq!(policy.policy, Some(Policy::RoundRobin));
        let weight = with("x-warmroute-overlap-weight", "0.5");
        assert_eq!(
            (weight.overlap_weight, weight.temperature),
            (Some(0.5), None)
        );
        let temperature = with("x-warmroute-temperature", "2");
        assert_eq!(temperature.temperature, Some(2.0));
        assert_eq!(with("x-warmroute-priority", "-7").priority, -7);
    }

    #[test]
    fn the_ends_of_a_range_are_accepted_and_what_lies_beyond_is_refused_by_name() {
        for (name, good, bad) in [
            (
                "x-warmroute-overlap-weight",
                ["0", "100"],
                ["-0.1", "100.1", "NaN", "inf", "1,5", ""],
            ),
            (
                "x-warmroute-temperature",
                ["0", "10"],
                ["-1", "10.5", "nan", "-inf", "warm", ""],
            ),
            (
                "x-warmroute-priority",
                ["-100", "100"],
                ["-101", "101", "1.0", "0x1", "high", ""],
            ),
        ] {
            for value in good {
                assert!(read_one(name, value).is_ok(), "{name}: {value}");
            }
            for value in bad {
                let error = read_one(name, value).expect_err(value);
                assert_eq!(error.code, ErrorCode::InvalidRequest, "{name}: {value}");
                assert!(error.message.contains(name), "{}", error.message);
            }
        }
    }

    #[test]
    fn an_unknown_policy_and_a_value_that_is_no_text_are_refused() {
        let unknown = read_one("x-warmroute-policy", "warmest").expect_err("no such policy");
        assert_eq!(unknown.code, ErrorCode::UnknownPolicy);
        let mut headers = HeaderMap::new();
        let bytes = HeaderValue::from_bytes(b"w\xff").expect("a value");
        headers.insert("x-warmroute-worker", bytes);
        let error = read(&headers, 0).expect_err("it is no ASCII");
        assert_eq!(error.code, ErrorCode::InvalidRequest);
    }

    #[test]
    #[contract("S69")]
    fn a_callers_text_in_a_message_is_short_and_on_one_line() {
        assert_eq!(printable("a\r\nb\u{1b}[31m"), "ab[31m");
        assert_eq!(printable(&"ä".repeat(1000)), "ä".repeat(100));
    }
}
