//! Expands `${NAME}` in texts of the file.

use zeroize::Zeroizing;

/// Reason why a text could not be expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpandError {
    /// The variable has no value. Only its name is reported.
    Unset(String),
    /// `${` is not followed by a name and `}`.
    Malformed,
}

/// Replaces every `${NAME}` by the variable's value; `$${` stands for `${` itself. A value is not
/// expanded again, so a variable cannot name another one. `None`: nothing to replace.
pub(crate) fn expand(
    text: &str,
    env: &[(String, String)],
) -> Result<Option<Zeroizing<String>>, ExpandError> {
    if !text.contains("${") {
        return Ok(None);
    }
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            parts.extend([&rest[..at - 1], "${"]);
            rest = &rest[at + 2..];
            continue;
        }
        parts.push(&rest[..at]);
        let after = &rest[at + 2..];
        let end = after.find('}').ok_or(ExpandError::Malformed)?;
        let name = &after[..end];
        if !is_name(name) {
            return Err(ExpandError::Malformed);
        }
        let (_, value) = env
            .iter()
            .find(|(key, _)| key == name)
            .ok_or_else(|| ExpandError::Unset(name.chars().take(64).collect()))?;
        parts.push(value);
        rest = &after[end + 1..];
    }
    parts.push(rest);
    // Joined at once: a text that grows leaves copies behind, and a value may be a secret.
    Ok(Some(parts.concat().into()))
}

fn is_name(name: &str) -> bool {
    !name.starts_with(|letter: char| letter.is_ascii_digit())
        && !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn expanded(text: &str) -> Result<Option<String>, ExpandError> {
        let env: [(String, String); 2] = [("A".into(), "1".into()), ("B_2".into(), "${A}".into())];
        Ok(expand(text, &env)?.map(|text| text.as_str().to_owned()))
    }

    #[test]
    fn names_are_replaced_once() {
        assert_eq!(expanded("x${A}y${A}"), Ok(Some("x1y1".into())));
        assert_eq!(expanded("${B_2}"), Ok(Some("${A}".into())));
        assert_eq!(expanded("$A $ {A}"), Ok(None));
        assert_eq!(expanded("$${A} ${A}"), Ok(Some("${A} 1".into())));
    }

    #[test]
    #[contract("S81")]
    fn an_error_names_the_variable_and_holds_no_value() {
        for text in ["${A}${NOPE}", "${NOPE}${A}", "${A} ${", "${A${B_2}"] {
            let error = format!(
                "{:?}",
                expand(
                    text,
                    &[
                        ("A".into(), "geheim".into()),
                        ("B_2".into(), "geheim".into())
                    ]
                )
            );
            assert!(
                error.starts_with("Err(") && !error.contains("geheim"),
                "{error}"
            );
        }
    }

    #[test]
    fn an_unset_name_is_reported_and_a_malformed_reference_is_rejected() {
        assert_eq!(expanded("${NOPE}"), Err(ExpandError::Unset("NOPE".into())));
        for text in ["${", "${}", "${A", "${A:-x}", "${1A}", "${ A }"] {
            assert_eq!(expanded(text), Err(ExpandError::Malformed), "{text}");
        }
    }
}
