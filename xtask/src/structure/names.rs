//! Type names that house style refuses: bare participles, and names of more than two things.

use std::collections::BTreeMap;

use super::types::TypeDefinition;

/// Words on `-ed` that are nouns.
const NOUNS: &[&str] = &["Bed", "Embed", "Feed", "Need", "Seed", "Shed", "Speed"];

/// Participles without `-ed`.
const IRREGULAR: &[&str] = &[
    "Begun",
    "Bound",
    "Broken",
    "Brought",
    "Built",
    "Chosen",
    "Done",
    "Drawn",
    "Fallen",
    "Found",
    "Given",
    "Gone",
    "Hidden",
    "Held",
    "Kept",
    "Known",
    "Lent",
    "Lost",
    "Made",
    "Met",
    "Paid",
    "Said",
    "Seen",
    "Sent",
    "Shown",
    "Shut",
    "Sold",
    "Sought",
    "Spent",
    "Spoken",
    "Taken",
    "Thrown",
    "Told",
    "Torn",
    "Understood",
    "Won",
    "Worn",
    "Written",
];

/// Returns the definitions whose name is a single participle.
pub(super) fn participles(types: &[TypeDefinition]) -> Vec<&TypeDefinition> {
    types
        .iter()
        .filter(|definition| is_participle(&definition.name))
        .collect()
}

/// Returns the names with more than two definitions, and their number.
pub(super) fn ambiguous(types: &[TypeDefinition]) -> Vec<(&str, usize)> {
    let mut definitions = BTreeMap::<&str, usize>::new();
    for definition in types {
        *definitions.entry(&definition.name).or_default() += 1;
    }
    definitions
        .into_iter()
        .filter(|(_, count)| *count > 2)
        .collect()
}

fn is_participle(name: &str) -> bool {
    let is_one_word = name.chars().skip(1).all(char::is_lowercase);
    let ends_in_ed = name.ends_with("ed") && !NOUNS.contains(&name);
    is_one_word && (ends_in_ed || IRREGULAR.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_participle_stands_alone_and_is_no_noun() {
        for name in ["Asked", "Kept", "Unanswered"] {
            assert!(is_participle(name), "{name}");
        }
        for name in ["ChangeFeed", "Feed", "KeptEntry", "EntryKept", "Keeper"] {
            assert!(!is_participle(name), "{name}");
        }
    }

    #[test]
    fn a_name_is_ambiguous_from_its_third_definition() {
        let definition = |name: &str| TypeDefinition {
            name: name.to_owned(),
            place: String::new(),
            fields: None,
            is_outside_shape: false,
        };
        let types = ["B", "A", "B", "A", "B"].map(definition);
        assert_eq!(ambiguous(&types), [("B", 3)]);
    }
}
