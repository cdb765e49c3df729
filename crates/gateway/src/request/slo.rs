//! Latency targets of a request, from its headers: our own names, then those of llm-d and SGLang.
//!
//! Any client may send them: a target orders a request among those of its own tenant only.

use std::{ops::RangeInclusive, time::Duration};

use dialect::ApiError;
use http::HeaderMap;
use routing::SloTargets;

use super::overrides::bad;

/// Names of the target for the time to first token, in milliseconds; the first one present counts.
const TTFT: [&str; 4] = [
    "x-warmroute-slo-ttft-ms",
    "x-llm-d-slo-ttft-ms",
    "x-slo-ttft-ms",
    "x-sgl-ttft-slo-ms",
];
/// Names of the target for the mean time between later tokens, in milliseconds.
const TPOT: [&str; 3] = [
    "x-warmroute-slo-tpot-ms",
    "x-llm-d-slo-tpot-ms",
    "x-slo-tpot-ms",
];
/// The same as a rate, in tokens per second.
const TOKENS_PER_S: &str = "x-sgl-tps-slo";

/// Range of a target in milliseconds, up to an hour.
const MILLISECONDS: RangeInclusive<f64> = 1.0..=3_600_000.0;
/// Range of a rate, so that each token has at most as long.
const RATE: RangeInclusive<f64> = 0.001..=1000.0;

/// Reads the targets of a request, which has the usual ones where it names none.
pub(super) fn read(headers: &HeaderMap, usual: SloTargets) -> Result<SloTargets, ApiError> {
    let ttft = milliseconds(headers, &TTFT)?;
    let tpot = match milliseconds(headers, &TPOT)? {
        None => number(headers, TOKENS_PER_S, &RATE)?
            .map(|tokens_per_s| Duration::from_secs_f64(1.0 / tokens_per_s)),
        named => named,
    };
    Ok(SloTargets { ttft, tpot }.or(usual))
}

/// Returns the value of the first of these headers that the request has.
fn milliseconds(headers: &HeaderMap, names: &[&'static str]) -> Result<Option<Duration>, ApiError> {
    let mut present = names.iter().copied();
    let Some(name) = present.find(|name| headers.contains_key(*name)) else {
        return Ok(None);
    };
    let ms = number(headers, name, &MILLISECONDS)?;
    Ok(ms.map(|ms| Duration::from_secs_f64(ms / 1e3)))
}

/// Returns the number in a header, if the request has it.
fn number(
    headers: &HeaderMap,
    name: &'static str,
    range: &RangeInclusive<f64>,
) -> Result<Option<f64>, ApiError> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or("?");
    let parsed = text.trim().parse::<f64>().ok();
    let number = parsed.filter(|number| range.contains(number));
    number.map(Some).ok_or_else(|| {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        bad(name, text, &expected)
    })
}

#[cfg(test)]
mod tests {
    use dialect::ErrorCode;
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn read_all(fields: &[(&'static str, &str)]) -> Result<SloTargets, ApiError> {
        let field = |(name, value): &(&'static str, &str)| {
            let value = HeaderValue::try_from(*value).expect("a value");
            (HeaderName::from_static(name), value)
        };
        let headers = fields.iter().map(field).collect::<HeaderMap>();
        read(&headers, SloTargets::default())
    }

    fn targets(ttft_ms: Option<u64>, tpot_ms: Option<u64>) -> SloTargets {
        SloTargets {
            ttft: ttft_ms.map(Duration::from_millis),
            tpot: tpot_ms.map(Duration::from_millis),
        }
    }

    #[test]
    fn each_name_sets_its_target_and_our_own_comes_first() {
        for name in TTFT {
            let found = read_all(&[(name, " 250 ")]).expect(name);
            assert_eq!(found, targets(Some(250), None), "{name}");
        }
        for name in TPOT {
            let found = read_all(&[(name, "40")]).expect(name);
            assert_eq!(found, targets(None, Some(40)), "{name}");
        }
        let rate = read_all(&[(TOKENS_PER_S, "25")]).expect("a rate");
        assert_eq!(rate, targets(None, Some(40)));
        let all = [
            (TTFT[3], "900"),
            (TTFT[0], "250"),
            (TOKENS_PER_S, "1"),
            (TPOT[2], "40"),
        ];
        let found = read_all(&all).expect("good values");
        assert_eq!(found, targets(Some(250), Some(40)));
    }

    #[test]
    fn a_request_without_targets_has_the_usual_ones_each_for_itself() {
        let usual = targets(Some(500), Some(50));
        let mut headers = HeaderMap::new();
        assert_eq!(read(&headers, usual).expect("none is wrong"), usual);
        headers.insert(TTFT[0], HeaderValue::from_static("1"));
        let found = read(&headers, usual).expect("a number");
        assert_eq!(found, targets(Some(1), Some(50)));
    }

    #[test]
    fn a_value_that_is_no_time_is_refused_by_the_name_of_its_header() {
        let values = [
            "", "0", "-1", "0.5", "3600001", "NaN", "inf", "1s", "1,5", "fast",
        ];
        for name in TTFT.into_iter().chain(TPOT) {
            for value in values {
                let error = read_all(&[(name, value)]).expect_err(value);
                assert_eq!(error.code, ErrorCode::InvalidRequest, "{name}: {value}");
                assert!(error.message.contains(name), "{}", error.message);
            }
            assert!(read_all(&[(name, "3600000")]).is_ok());
        }
        for value in ["", "0", "0.0001", "1001", "-5", "nan"] {
            assert!(read_all(&[(TOKENS_PER_S, value)]).is_err(), "{value}");
        }
        let mut headers = HeaderMap::new();
        let bytes = HeaderValue::from_bytes(b"1\xff").expect("a value");
        headers.insert(TTFT[0], bytes);
        assert!(read(&headers, SloTargets::default()).is_err());
    }
}
