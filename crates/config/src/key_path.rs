//! Paths of keys, as in `models.entries["a.b"].tokenizer`.

use settings::shown_text;

/// Splits `a.b["c.d"].e` into `a`, `b`, `c.d`, `e`; `None` if it has another form.
pub(crate) fn steps(path: &str) -> Option<Vec<String>> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix("[\"") {
            let (name, after) = quoted.split_once("\"]")?;
            steps.push(name.to_owned());
            rest = after;
        } else if let Some(bare) = rest.strip_prefix('[') {
            let (name, after) = bare.split_once(']')?;
            steps.push(name.to_owned());
            rest = after;
        } else {
            let bare = if steps.is_empty() {
                rest
            } else {
                rest.strip_prefix('.')?
            };
            let end = bare.find(['.', '[']).unwrap_or(bare.len());
            if end == 0 {
                return None;
            }
            steps.push(bare[..end].to_owned());
            rest = &bare[end..];
        }
    }
    if steps.is_empty() { None } else { Some(steps) }
}

/// Returns the path of a key in a section.
pub(crate) fn join(path: &str, key: &str) -> String {
    let key = shown_text(key);
    if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    }
}

/// Returns the path of a map entry. A name of the user's choice may contain dots, and is then
/// quoted.
pub fn map_path(path: &str, name: &str) -> String {
    if name.contains(['.', '[', ']']) {
        format!("{path}[{:?}]", shown_text(name))
    } else {
        join(path, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_names_between_dots_or_in_brackets() {
        let found = steps(r#"models.entries["a.b/c"].tokenizer"#).expect("a path");
        assert_eq!(found, ["models", "entries", "a.b/c", "tokenizer"]);
        assert_eq!(
            steps("workers[w1].weight").expect("a path"),
            ["workers", "w1", "weight"]
        );
        for path in ["", ".", "a.", "a..b", "a[b", "a[\"b]", "a]b["] {
            assert_eq!(steps(path), None, "{path}");
        }
    }
}
