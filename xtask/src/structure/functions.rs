//! Functions: their lengths and arguments.

use super::{
    lists::{behind_generics, split_at_commas},
    source_file::{SourceFile, closing},
};
use crate::rust_tokens::SourceToken;

/// A function with a body, outside test modules.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// `crates/net/src/lib.rs:12`.
    pub(super) place: String,
    /// From the line of `fn` to the line of the closing brace.
    pub(super) lines: usize,
    /// Without `self`.
    pub(super) arguments: usize,
    /// Arguments of type `bool`.
    pub(super) bools: usize,
}

pub(super) fn functions(file: &SourceFile) -> Vec<Function> {
    let starts = (0..file.tokens.len()).filter(|at| !file.is_test(*at));
    starts.filter_map(|at| function_at(file, at)).collect()
}

fn function_at(file: &SourceFile, at: usize) -> Option<Function> {
    let tokens = &file.tokens;
    if tokens[at].word() != Some("fn") {
        return None;
    }
    let name = tokens.get(at + 1)?.word()?;
    let mut open = at + 2;
    if tokens.get(open)?.is_sign('<') {
        open = behind_generics(tokens, open);
    }
    if !tokens.get(open)?.is_sign('(') {
        return None;
    }
    let close = closing(tokens, open);
    let arguments: Vec<_> = split_at_commas(&tokens[open + 1..close])
        .into_iter()
        .filter(|argument| !is_self(argument))
        .collect();
    let body = body_after(tokens, close + 1)?;
    let end = closing(tokens, body);
    Some(Function {
        name: name.to_owned(),
        place: format!("{}:{}", file.path, tokens[at].line),
        lines: tokens[end].line - tokens[at].line + 1,
        bools: arguments
            .iter()
            .filter(|argument| is_bool(argument))
            .count(),
        arguments: arguments.len(),
    })
}

/// Returns the opening brace of a function's body; a declaration without a body has none.
fn body_after(tokens: &[SourceToken], signature_end: usize) -> Option<usize> {
    let mut at = signature_end;
    loop {
        let token = tokens.get(at)?;
        if token.is_sign('{') {
            return Some(at);
        }
        if token.is_sign(';') {
            return None;
        }
        let opens = token.is_sign('(') || token.is_sign('[');
        at = if opens {
            closing(tokens, at) + 1
        } else {
            at + 1
        };
    }
}

fn is_self(argument: &[SourceToken]) -> bool {
    let mut pattern = argument.iter().take_while(|token| !token.is_sign(':'));
    pattern.any(|token| token.word() == Some("self"))
}

fn is_bool(argument: &[SourceToken]) -> bool {
    let [.., colon, kind] = argument else {
        return false;
    };
    colon.is_sign(':') && kind.word() == Some("bool")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(String, usize, usize, usize)> {
        functions(&SourceFile::new("crates/a/src/lib.rs", source))
            .into_iter()
            .map(|function| {
                (
                    function.name,
                    function.lines,
                    function.arguments,
                    function.bools,
                )
            })
            .collect()
    }

    #[test]
    fn a_function_is_as_long_as_from_its_keyword_to_its_brace() {
        let source = "/// One.\npub async fn a(\n    b: u8,\n) -> [u8; 2]\nwhere\n    u8: Copy,\n{\n    \"}\"\n}\nfn c() {}";
        assert_eq!(
            found(source),
            [("a".to_owned(), 8, 1, 0), ("c".to_owned(), 1, 0, 0)]
        );
    }

    #[test]
    fn self_is_no_argument_and_commas_of_types_do_not_count() {
        let source = "impl A {
            fn a(&'a mut self, b: Map<u8, (u8, bool)>, c: impl Fn(u8, bool) -> Vec<u8>, d: bool) {}
            fn e<F: Fn(u8) -> u8, const N: usize>(self: Arc<Self>, f: F, g: &bool) {}
        }";
        assert_eq!(
            found(source),
            [("a".to_owned(), 1, 3, 1), ("e".to_owned(), 1, 2, 0)]
        );
    }

    #[test]
    fn declarations_function_types_and_tests_are_left_out() {
        let source = "trait A { fn b(&self) -> [u8; 2]; }\ntype C = fn(u8) -> u8;\n#[cfg(test)]\nmod tests { fn d() {} }";
        assert_eq!(found(source), []);
    }
}
