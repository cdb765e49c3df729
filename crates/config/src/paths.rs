//! Paths of the keys that the schema table marks in some way.

use settings::{KeySchema, ValueKind};

use crate::{key_path::steps, schema::ROOT};

/// Name of a map's entry in the paths of all of them.
const ANY_NAME: &str = "NAME";

/// Returns the keys that a simulation may vary, by their paths in the order of the table. Below a
/// map the path has `NAME` in the place of an entry's name.
pub fn simulated_keys() -> Vec<String> {
    let mut paths = Vec::new();
    let is_simulated = |key: &KeySchema| key.simulated;
    collect(ROOT, "", MapEntries::Visited, &is_simulated, &mut paths);
    paths
}

/// Returns whether a simulation may vary the key at this path.
pub fn is_simulated(path: &str) -> bool {
    let Some(steps) = steps(path) else {
        return false;
    };
    let (mut kind, mut is_marked) = (ValueKind::Section(ROOT), false);
    for step in steps {
        kind = match kind {
            ValueKind::Section(keys) => match keys.iter().find(|key| key.name == step) {
                Some(key) => {
                    is_marked = key.simulated;
                    key.kind
                }
                None => return false,
            },
            ValueKind::Map(inner) => *inner,
            _ => return false,
        };
    }
    is_marked
}

/// Returns the paths of the keys that `is_marked`; nothing below such a key, or below a map, is
/// visited.
pub(crate) fn paths_of(is_marked: impl Fn(&KeySchema) -> bool) -> Vec<String> {
    let mut paths = Vec::new();
    collect(ROOT, "", MapEntries::Ignored, &is_marked, &mut paths);
    paths
}

/// Whether the keys below a map are visited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MapEntries {
    Visited,
    Ignored,
}

fn collect(
    keys: &[KeySchema],
    section: &str,
    entries: MapEntries,
    is_marked: &impl Fn(&KeySchema) -> bool,
    paths: &mut Vec<String>,
) {
    for key in keys {
        let path = format!("{section}{}", key.name);
        match key.kind {
            _ if is_marked(key) => paths.push(path),
            ValueKind::Section(inner) => {
                collect(inner, &format!("{path}."), entries, is_marked, paths);
            }
            ValueKind::Map(ValueKind::Section(inner)) if entries == MapEntries::Visited => {
                let section = format!("{path}.{ANY_NAME}.");
                collect(inner, &section, entries, is_marked, paths);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_below_a_map_is_simulated_for_every_name() {
        assert!(simulated_keys().contains(&"routing.models.NAME.policy".to_owned()));
        for (path, expected) in [
            ("routing.models.qwen.policy", true),
            ("routing.models[\"org/qwen2.5*\"].medium_weights.cpu", true),
            ("routing.models.qwen.busy_threshold", false),
            ("routing.models.qwen", false),
            ("routing.models", false),
            ("routing.temperature", true),
            ("routing.temperature.x", false),
            ("routing..temperature", false),
            ("server.listen", false),
            ("", false),
        ] {
            assert_eq!(is_simulated(path), expected, "{path}");
        }
    }
}
