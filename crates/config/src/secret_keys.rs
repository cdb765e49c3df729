//! Values that are not shown, as they may be secrets.

use settings::MapEntry;

/// Returns the displayable value of an unknown key: a mistyped `api_key` still holds a key.
pub(crate) fn shown_unknown(entry: &MapEntry) -> serde_json::Value {
    if sounds_secret(&entry.key) {
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
        "bearer",
        "sha256",
    ]
    .iter()
    .any(|part| key.contains(part))
}
