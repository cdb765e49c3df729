//! Type definitions: structs with their fields, enums, traits and unions.

use super::{
    lists::split_at_commas,
    source_file::{SourceFile, closing},
};
use crate::rust_tokens::SourceToken;

/// Words before the types of command lines and wire shapes: their derives, and the macro that
/// declares a section of the configuration file.
const OUTSIDE_SHAPES: &[&str] = &[
    "Args",
    "Deserialize",
    "Parser",
    "Serialize",
    "Subcommand",
    "section",
];

const MAX_FIELDS: usize = 13;

/// A type that is defined outside test modules.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TypeDefinition {
    pub(super) name: String,
    /// `crates/net/src/lib.rs:12`.
    pub(super) place: String,
    /// `None` for anything but a struct.
    pub(super) fields: Option<usize>,
    /// Whether it derives the traits of a command line or of a wire shape.
    pub(super) is_outside_shape: bool,
}

impl TypeDefinition {
    /// Whether it is a struct with more fields than house style allows.
    pub(super) fn is_large(&self) -> bool {
        self.fields.is_some_and(|fields| fields > MAX_FIELDS)
    }
}

pub(super) fn types(file: &SourceFile) -> Vec<TypeDefinition> {
    let starts = (0..file.tokens.len()).filter(|at| !file.is_test(*at));
    starts.filter_map(|at| type_at(file, at)).collect()
}

fn type_at(file: &SourceFile, at: usize) -> Option<TypeDefinition> {
    let tokens = &file.tokens;
    let keyword = tokens[at].word()?;
    if !matches!(keyword, "struct" | "enum" | "trait" | "union") {
        return None;
    }
    let name = tokens.get(at + 1)?.word()?;
    Some(TypeDefinition {
        name: name.to_owned(),
        place: format!("{}:{}", file.path, tokens[at].line),
        fields: (keyword == "struct").then(|| fields_after(tokens, at + 2)),
        is_outside_shape: derives_before(&tokens[..at])
            .any(|derive| OUTSIDE_SHAPES.contains(&derive)),
    })
}

/// Counts the fields of a struct, given the position behind its name.
fn fields_after(tokens: &[SourceToken], start: usize) -> usize {
    let opens = |token: &SourceToken| ['{', '(', ';'].iter().any(|sign| token.is_sign(*sign));
    let Some(open) = tokens[start..].iter().position(opens) else {
        return 0;
    };
    let open = start + open;
    let inside = || &tokens[open + 1..closing(tokens, open)];
    if tokens[open].is_sign('{') {
        let fields = without_attributes(inside());
        let has_type = |field: &&[SourceToken]| field.iter().any(|token| token.is_sign(':'));
        split_at_commas(&fields)
            .iter()
            .filter(|field| has_type(field))
            .count()
    } else if tokens[open].is_sign('(') {
        split_at_commas(inside()).len()
    } else {
        0
    }
}

fn without_attributes(tokens: &[SourceToken]) -> Vec<SourceToken> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let opens = tokens.get(at + 1).is_some_and(|next| next.is_sign('['));
        if token.is_sign('#') && opens {
            at = closing(tokens, at + 1) + 1;
        } else {
            kept.push(token.clone());
            at += 1;
        }
    }
    kept
}

/// Returns the words between the end of the previous item and a type's keyword.
fn derives_before(tokens: &[SourceToken]) -> impl Iterator<Item = &str> {
    let is_end = |token: &&SourceToken| token.is_sign('}') || token.is_sign(';');
    let attributes = tokens.iter().rev().take_while(move |token| !is_end(token));
    attributes.filter_map(SourceToken::word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<(String, Option<usize>, bool)> {
        types(&SourceFile::new("crates/a/src/lib.rs", source))
            .into_iter()
            .map(|found| (found.name, found.fields, found.is_outside_shape))
            .collect()
    }

    #[test]
    fn fields_are_counted_in_every_form_of_struct() {
        let source = "
            struct A<T: Copy> where T: Clone { #[serde(default, rename = \"x\")] pub b: Map<u8, T>, /* c: u8 */ d: fn(u8, u8) -> u8 }
            struct E(u8, (u8, u8));
            struct F;
            enum G { H { i: u8 } }
            fn j() -> &'static str { \"struct K { l: u8 }\" }
            #[cfg(test)] mod tests { struct M { n: u8 } }
        ";
        assert_eq!(
            found(source),
            [
                ("A".to_owned(), Some(2), false),
                ("E".to_owned(), Some(2), false),
                ("F".to_owned(), Some(0), false),
                ("G".to_owned(), None, false),
            ]
        );
    }

    #[test]
    fn wire_shapes_and_command_lines_are_known_by_their_derives_and_their_macro() {
        let source = "#[derive(Debug, Serialize)]\n#[serde(untagged)]\npub(crate) struct A { b: u8 }\n#[derive(clap::Args)] struct C(u8);\nsettings::section! { pub struct E { f: u8 } }\nstruct D(u8);";
        let outside: Vec<_> = found(source)
            .into_iter()
            .map(|(_, _, outside)| outside)
            .collect();
        assert_eq!(outside, [true, true, true, false]);
    }
}
