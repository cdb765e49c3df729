//! The models that a tenant may name.

/// Models by name, or by the beginning of the name. None: all models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedModels(Box<[ModelPattern]>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ModelPattern {
    Exact(Box<str>),
    /// Names that begin so.
    Prefix(Box<str>),
}

/// A pattern that is empty, or has a `*` before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongPattern;

impl ModelPattern {
    fn read(text: &str) -> Result<Self, WrongPattern> {
        let (name, prefix) = match text.strip_suffix('*') {
            Some(name) => (name, true),
            None => (text, false),
        };
        match (name, prefix) {
            ("", false) => Err(WrongPattern),
            (name, _) if name.contains('*') => Err(WrongPattern),
            (name, true) => Ok(Self::Prefix(name.into())),
            (name, false) => Ok(Self::Exact(name.into())),
        }
    }

    fn fits(&self, model: &str) -> bool {
        match self {
            Self::Exact(name) => **name == *model,
            Self::Prefix(prefix) => model.starts_with(&**prefix),
        }
    }
}

impl AllowedModels {
    /// Reads a list of names.
    ///
    /// # Errors
    ///
    /// A name that is empty, or has a `*` before its end.
    ///
    /// ```
    /// let models = tenants::AllowedModels::read(["llama-*", "qwen"]).expect("names");
    /// assert!(models.has("llama-3") && models.has("qwen"));
    /// assert!(!models.has("qwen2") && !models.has("my-llama-3"));
    /// ```
    pub fn read<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, WrongPattern> {
        let patterns: Result<_, _> = names.into_iter().map(ModelPattern::read).collect();
        patterns.map(Self)
    }

    /// Returns a list that no model is in.
    pub(crate) fn nothing() -> Self {
        Self(Box::new([ModelPattern::Exact("".into())]))
    }

    /// Returns whether requests may name this model.
    pub fn has(&self, model: &str) -> bool {
        let fits = |pattern: &ModelPattern| pattern.fits(model);
        self.is_all() || self.0.iter().any(fits)
    }

    /// Returns whether they may name any model.
    pub fn is_all(&self) -> bool {
        let any =
            |pattern: &ModelPattern| matches!(pattern, ModelPattern::Prefix(p) if p.is_empty());
        self.0.is_empty() || self.0.iter().any(any)
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn allowed(names: &[&str]) -> AllowedModels {
        AllowedModels::read(names.iter().copied()).expect("names")
    }

    #[test]
    #[contract("V31")]
    fn a_model_is_allowed_by_its_name_or_by_a_beginning_that_a_star_follows() {
        let some = allowed(&["gpt-4", "llama-*"]);
        for (model, expected) in [
            ("gpt-4", true),
            ("gpt-4o", false),
            ("GPT-4", false),
            ("llama-", true),
            ("llama-3", true),
            ("llama", false),
            ("my-llama-3", false),
            ("", false),
        ] {
            assert_eq!(some.has(model), expected, "{model}");
        }
        assert!(allowed(&["*"]).has("anything"));
        assert!(allowed(&[]).has("anything"), "an empty list allows all");
        for (names, all) in [
            (&[][..], true),
            (&["*"], true),
            (&["a", "*"], true),
            (&["a*"], false),
        ] {
            assert_eq!(allowed(names).is_all(), all, "{names:?}");
        }
    }

    #[test]
    fn a_star_stands_only_at_the_end() {
        for wrong in ["", "*x", "a*b", "a**", "a*b*"] {
            assert_eq!(AllowedModels::read([wrong]), Err(WrongPattern), "{wrong}");
        }
    }
}
