//! The parameter `limit` of lists.

use dialect::{ApiError, ErrorCode};

/// Default and maximum of the entries in a list.
const USUAL: usize = 100;
const MOST: usize = 1000;

/// Reads the parameter; more than the maximum counts as the maximum.
pub(crate) fn list_limit(text: Option<&str>) -> Result<usize, ApiError> {
    match text.map(str::parse::<usize>) {
        None => Ok(USUAL),
        Some(Ok(limit)) => Ok(limit.min(MOST)),
        Some(Err(_)) => {
            let message = format!("limit is not a number: expected 0 to {MOST}");
            Err(ApiError::new(ErrorCode::InvalidRequest, message).param("limit"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_100_entries_unless_another_number_up_to_1000_is_asked_for() {
        for (text, limit) in [
            (None, Some(100)),
            (Some("0"), Some(0)),
            (Some("7"), Some(7)),
            (Some("1001"), Some(1000)),
            (Some("x"), None),
            (Some("-1"), None),
            (Some(""), None),
        ] {
            assert_eq!(list_limit(text).ok(), limit, "{text:?}");
        }
    }
}
