//! The contract ids: families of promises, each numbered from 1.

/// The families with their last numbers.
const FAMILIES: &[(&str, u32)] = &[
    ("A", 13),
    ("B", 6),
    ("CH", 31),
    ("CK", 86),
    ("D", 3),
    ("DY", 41),
    ("F", 98),
    ("G", 30),
    ("I", 14),
    ("MC", 13),
    ("S", 82),
    ("V", 48),
];

/// Family and number; ids sort by them, so that `V9` comes before `V10`.
pub(crate) type Id = (&'static str, u32);

/// Returns the id of this name, if it exists.
pub(crate) fn parse(text: &str) -> Option<Id> {
    let digits = text.find(|letter: char| letter.is_ascii_digit())?;
    let (family, number) = text.split_at(digits);
    let (family, last) = FAMILIES.iter().find(|(name, _)| *name == family)?;
    // `V08` and `V+8` are numbers, but not ids.
    let number = number
        .parse()
        .ok()
        .filter(|parsed: &u32| parsed.to_string() == number)?;
    (1..=*last).contains(&number).then_some((*family, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_family_and_a_number_of_it() {
        assert_eq!(parse("CK86"), Some(("CK", 86)));
        assert_eq!(parse("F1"), Some(("F", 1)));
        for text in [
            "CK87",
            "CK0",
            "V08",
            "V+8",
            "V",
            "8",
            "",
            "X1",
            "ck1",
            "V1 ",
            "V1.2",
            "V99999999999",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn ids_sort_by_number_and_not_by_letter() {
        assert!(parse("V9") < parse("V10"));
        assert!(parse("CH31") < parse("CK1"));
    }
}
