//! `strftime_now`: the date in a template.

use std::fmt::Write as _;

use minijinja::{Error, ErrorKind, value::Value};
use time::OffsetDateTime;

use super::meter::charge;

/// Returns the variable `strftime_now`: the current date in the template's format. The engine uses
/// its own time zone; this uses UTC, as servers do.
pub(super) fn strftime_now(now_unix_s: i64) -> Value {
    Value::from_function(move |format: String| {
        // A directive of two letters becomes a date.
        charge(format.len().saturating_mul(8))?;
        let now = OffsetDateTime::from_unix_timestamp(now_unix_s)
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "the time is out of range"))?;
        strftime(now, &format).map_err(|directive| {
            Error::new(
                ErrorKind::InvalidOperation,
                format!("%{directive} is not known to strftime_now"),
            )
        })
    })
}

/// Formats a time; `Err` is an unsupported directive.
fn strftime(now: OffsetDateTime, format: &str) -> Result<String, char> {
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(character) = letters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        let mut directive = letters.next().unwrap_or('%');
        let unpadded = directive == '-';
        if unpadded {
            directive = letters.next().unwrap_or('-');
        }
        let hour12 = (now.hour() + 11) % 12 + 1;
        let (value, width) = match directive {
            'd' => (u32::from(now.day()), 2),
            'm' => (u32::from(u8::from(now.month())), 2),
            'y' => (now.year().rem_euclid(100).unsigned_abs(), 2),
            'H' => (u32::from(now.hour()), 2),
            'I' => (u32::from(hour12), 2),
            'M' => (u32::from(now.minute()), 2),
            'S' => (u32::from(now.second()), 2),
            'j' => (u32::from(now.ordinal()), 3),
            'Y' => (now.year().unsigned_abs(), 4),
            other => {
                match other {
                    'B' => text.push_str(&now.month().to_string()),
                    'b' | 'h' => text.extend(now.month().to_string().chars().take(3)),
                    'A' => text.push_str(&now.weekday().to_string()),
                    'a' => text.extend(now.weekday().to_string().chars().take(3)),
                    'p' => text.push_str(if now.hour() < 12 { "AM" } else { "PM" }),
                    'F' => text.push_str(&strftime(now, "%Y-%m-%d")?),
                    'T' => text.push_str(&strftime(now, "%H:%M:%S")?),
                    '%' => text.push('%'),
                    unknown => return Err(unknown),
                }
                continue;
            }
        };
        let width = if unpadded { 1 } else { width };
        let _ = write!(text, "{value:0width$}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_written_in_the_template_s_format() {
        let now = OffsetDateTime::from_unix_timestamp(1_762_000_205).unwrap();
        assert_eq!(
            strftime(now, "%d %b %Y|%-d %B %y|%A %a|%H:%M:%S %I %p|%j|%F|%%").unwrap(),
            "01 Nov 2025|1 November 25|Saturday Sat|12:30:05 12 PM|305|2025-11-01|%"
        );
        assert_eq!(strftime(now, "%Q"), Err('Q'));
    }
}
