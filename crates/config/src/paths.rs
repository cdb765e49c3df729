//! Paths of the keys that the schema table marks in some way.

use settings::{KeySchema, ValueKind};

use crate::schema::ROOT;

/// Returns the keys that a simulation may vary, by their paths in the order of the table.
pub fn simulated_keys() -> Vec<String> {
    paths_of(|key| key.simulated)
}

/// Returns the paths of the keys that `is_marked`; nothing below such a key is visited.
pub(crate) fn paths_of(is_marked: impl Fn(&KeySchema) -> bool) -> Vec<String> {
    let mut paths = Vec::new();
    collect(ROOT, "", &is_marked, &mut paths);
    paths
}

fn collect(
    keys: &[KeySchema],
    section: &str,
    is_marked: &impl Fn(&KeySchema) -> bool,
    paths: &mut Vec<String>,
) {
    for key in keys {
        let path = format!("{section}{}", key.name);
        match key.kind {
            _ if is_marked(key) => paths.push(path),
            ValueKind::Section(inner) => collect(inner, &format!("{path}."), is_marked, paths),
            _ => {}
        }
    }
}
