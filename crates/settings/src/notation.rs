//! Notation of durations and sizes.
//!
//! Only the notation: the schema defines the values that a key takes.

use std::time::Duration;

/// Longest duration that any key takes, so that adding it to a point in time never overflows.
pub const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// Reads a duration as every key takes it: `30s`, `5m`, `250ms`, `1.5h`, `1m30s`, or a bare number
/// of seconds.
///
/// ```
/// assert_eq!(settings::duration("1m30s"), Some(std::time::Duration::from_secs(90)));
/// assert_eq!(settings::duration("soon"), None);
/// ```
pub fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    if text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        return seconds(text.parse().ok()?);
    }
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits =
            rest.find(|character: char| !character.is_ascii_digit() && character != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest
            .find(|character: char| character.is_ascii_digit())
            .unwrap_or(rest.len());
        total += number * unit_seconds(&rest[..end])?;
        rest = &rest[end..];
    }
    if text.is_empty() {
        None
    } else {
        seconds(total)
    }
}

/// Converts a number of seconds, if a duration can hold it.
pub(crate) fn seconds(number: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(number).ok()
}

fn unit_seconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3_600.0,
        "d" => 86_400.0,
        _ => return None,
    })
}

/// Writes a duration so that [`duration`] reads it back: the largest unit that divides it.
pub(crate) fn show_duration(value: Duration) -> String {
    let micros = value.as_micros();
    let units = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "m"),
        (1_000_000, "s"),
        (1_000, "ms"),
    ];
    if micros == 0 {
        return "0s".into();
    }
    // From a second up to an hour people write seconds: 300s, not 5m.
    let (size, unit) = units
        .into_iter()
        .filter(|(size, unit)| {
            micros.is_multiple_of(*size) && (*unit != "m" || micros >= 3_600_000_000)
        })
        .find(|(size, _)| micros >= *size)
        .unwrap_or((1, "us"));
    format!("{}{unit}", micros / size)
}

/// Reads `512MiB`, `32KiB`, `1MB`, `4096`.
pub(crate) fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let unit: u64 = match text[digits..].trim_start() {
        "" | "B" => 1,
        "KiB" | "Ki" => 1 << 10,
        "MiB" | "Mi" => 1 << 20,
        "GiB" | "Gi" => 1 << 30,
        "TiB" | "Ti" => 1 << 40,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    number.checked_mul(unit)
}

/// Writes a size so that [`size`] reads it back: the largest binary unit that divides it.
pub(crate) fn show_size(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_in_every_form_that_documents_use() {
        for (text, millis) in [
            ("30s", 30_000),
            ("5m", 300_000),
            ("250ms", 250),
            ("1h", 3_600_000),
            ("1m30s", 90_000),
            ("1.5s", 1_500),
            ("24h", 86_400_000),
            ("2d", 172_800_000),
            ("60", 60_000),
            ("0", 0),
        ] {
            assert_eq!(
                duration(text),
                Some(Duration::from_millis(millis)),
                "{text}"
            );
        }
        for text in [
            "",
            "s",
            "5x",
            "-5s",
            "5 minutes",
            "5s5",
            ".",
            "1..2s",
            "1e9s",
            "99999999999999999999999h",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_read_in_binary_and_decimal_units() {
        for (text, bytes) in [
            ("512MiB", 512 << 20),
            ("32KiB", 32 << 10),
            ("1MB", 1_000_000),
            ("4096", 4096),
            ("0", 0),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "MiB",
            "-1",
            "1.5MiB",
            "5XB",
            "99999999999999999999",
            "20000000TiB",
        ] {
            assert_eq!(size(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_shown_duration_reads_back(micros in 0_u64..31_622_400_000_000) {
            let value = Duration::from_micros(micros);
            let back = duration(&show_duration(value)).expect("the output parses");
            // f64 seconds hold a year to well under a microsecond.
            prop_assert!(back.abs_diff(value) < Duration::from_micros(1));
        }

        #[test]
        fn a_shown_size_reads_back(bytes: u64) {
            prop_assert_eq!(size(&show_size(bytes)), Some(bytes));
        }

        #[test]
        fn any_text_is_parsed_or_rejected(text: String) {
            let _ = duration(&text);
            let _ = size(&text);
        }
    }
}
