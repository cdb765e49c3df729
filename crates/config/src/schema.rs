//! The schema table: the keys of all sections, and the names that stand beside them.

use settings::{KeySchema, Section};

use crate::sections::Settings;

/// The sections of the file that this version acts on.
pub const ROOT: &[KeySchema] = Settings::KEYS;

/// Other names for top-level keys.
pub const TOP_ALIASES: &[(&str, &[&str])] = &[
    ("backends", &["workers"]),
    ("api_keys", &["tenants", "api_keys"]),
    ("decision_log", &["decisions", "log"]),
];
