//! The paths of `use` declarations.

use super::{lists::split_at_commas, source_file::SourceFile};
use crate::rust_tokens::SourceToken;

/// One path of a `use` declaration: `use a::{b, c as d};` has two.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UsePath {
    pub(super) segments: Vec<String>,
    pub(super) is_public: bool,
}

/// Returns the paths outside test modules.
pub(super) fn use_paths(file: &SourceFile) -> Vec<UsePath> {
    let tokens = &file.tokens;
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        if tokens[at].word() != Some("use") || file.is_test(at) {
            continue;
        }
        let length = tokens[at..].iter().position(|token| token.is_sign(';'));
        // `::name` is another crate, and `use<'a>` names what a type captures.
        let is_other = |token: &SourceToken| token.is_sign(':') || token.is_sign('<');
        let other = tokens.get(at + 1).is_some_and(is_other);
        let Some(length) = length.filter(|_| !other) else {
            continue;
        };
        let is_public = is_public(&tokens[..at]);
        for segments in expanded(&tokens[at + 1..at + length]) {
            found.push(UsePath {
                segments,
                is_public,
            });
        }
    }
    found
}

/// Whether these tokens end with `pub` or `pub(..)`.
fn is_public(before: &[SourceToken]) -> bool {
    let mut before = before.iter().rev();
    let mut last = before.next();
    if last.is_some_and(|token| token.is_sign(')')) {
        last = before.find(|token| token.is_sign('(')).and(before.next());
    }
    last.and_then(SourceToken::word) == Some("pub")
}

/// Returns the paths of a tree such as `a::{b, c::{d, e}}`, without renames.
fn expanded(tree: &[SourceToken]) -> Vec<Vec<String>> {
    let group = tree.iter().position(|token| token.is_sign('{'));
    let renamed = |token: &&SourceToken| token.word() != Some("as");
    let prefix = &tree[..group.unwrap_or(tree.len())];
    let segments: Vec<_> = prefix
        .iter()
        .take_while(renamed)
        .filter_map(|token| match token.word() {
            Some(word) => Some(word.to_owned()),
            None => token.is_sign('*').then(|| "*".to_owned()),
        })
        .collect();
    let Some(group) = group else {
        return vec![segments];
    };
    let inside = &tree[group + 1..tree.len().saturating_sub(1)];
    split_at_commas(inside)
        .into_iter()
        .flat_map(expanded)
        .map(|rest| segments.iter().cloned().chain(rest).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_expanded_and_its_renames_are_dropped() {
        let source = "use crate::{a::{B as C, d::*}, self as e}; // use x;\npub(crate) use super::F;\nuse ::a::G;\nfn f<'a>() -> impl I + use<'a> { a::b }\nstruct S;\n#[cfg(test)] mod tests { use super::*; }";
        let file = SourceFile::new("crates/a/src/lib.rs", source);
        let found: Vec<_> = use_paths(&file)
            .into_iter()
            .map(|path| (path.segments.join("::"), path.is_public))
            .collect();
        let expected = [
            ("crate::a::B", false),
            ("crate::a::d::*", false),
            ("crate::self", false),
            ("super::F", true),
        ];
        assert_eq!(
            found,
            expected.map(|(path, is_public)| (path.to_owned(), is_public))
        );
    }
}
