//! Values that are not shown, as they may be secrets.

use settings::{KeySchema, MapEntry, has_secret};

/// Returns the displayable value of an unknown key beside `keys`: a mistyped `api_key` still holds a
/// key.
pub(crate) fn shown_unknown(entry: &MapEntry, keys: &[KeySchema]) -> serde_json::Value {
    if sounds_secret(&entry.key) || has_secret(keys) {
        "***".into()
    } else {
        entry.value.shown()
    }
}

fn sounds_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    [
        "key",
        "secret",
        "token",
        "password",
        "passwd",
        "credential",
        "auth",
    ]
    .iter()
    .any(|part| key.contains(part))
}
