//! Suggests the known name for a mistyped one.

/// Returns the closest candidate if it is likely a typing error: at most a third of the letters
/// differ.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    // Long names are unlikely typing errors, and the distance costs the product of the lengths.
    if name.is_empty() || name.len() > 64 {
        return None;
    }
    let name: Vec<char> = fold(name);
    let allowed = (name.len() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(&name, &fold(candidate)), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.to_owned())
}

fn fold(name: &str) -> Vec<char> {
    name.chars()
        .map(|character| {
            if character == '-' {
                '_'
            } else {
                character.to_ascii_lowercase()
            }
        })
        .collect()
}

/// Counts edits (insert, delete, replace, swap neighbours) from `a` to `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(before_last[j - 2] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_with_swapped_missing_or_wrong_letters_finds_the_name() {
        let known = ["name", "url", "weight", "models"];
        assert_eq!(nearest("wieght", known).as_deref(), Some("weight"));
        assert_eq!(nearest("model", known).as_deref(), Some("models"));
        assert_eq!(nearest("URL", known).as_deref(), Some("url"));
    }

    #[test]
    fn a_different_word_finds_nothing() {
        assert_eq!(nearest("timeout", ["name", "url", "weight"]), None);
        assert_eq!(nearest(&"w".repeat(1 << 20), ["weight"]), None);
        assert_eq!(nearest("", ["a"]), None);
    }
}
