//! The schema table: the keys of all sections, and the names that stand beside them.

use settings::{KeySchema, Section};

use crate::sections::Settings;

/// The sections of the file that this version acts on.
pub const ROOT: &[KeySchema] = Settings::KEYS;

/// Sections that are known by name only: a file that sets one gets a problem.
pub(crate) const LATER_SECTIONS: &[&str] = &["tenants"];

/// Other names for top-level keys.
pub const TOP_ALIASES: &[(&str, &[&str])] = &[
    ("backends", &["workers"]),
    ("api_keys", &["tenants"]),
    ("decision_log", &["decisions", "log"]),
];
