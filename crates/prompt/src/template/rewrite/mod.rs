//! Rewrites a template with a charge to the render's budget wherever a value of no fixed size is
//! read or created.
//!
//! The template engine has no hook to count the work of its operators, and evaluates constant
//! expressions while it compiles. So the template is parsed, and written again with filters of this
//! crate in place of those operators; see [`super::operators`]. The first parse resolves the space
//! around tags: text is written as constants.
//!
//! **Invariant**: the new template renders the output of the old one, line by line, or fails.

mod expression;
mod main_loop;
mod operation;
mod statement;

use minijinja::{
    machinery::{Span, Token, ast, parse, tokenize},
    syntax::SyntaxConfig,
};

/// Maximum number of operators, calls and conditions in one tag: parsers, compilers and their trees
/// go one level deeper for each.
const MAX_OPERATORS: usize = 256;

/// Maximum number of `elif` tags in a template, for the same reason.
const MAX_ELIFS: usize = 256;

/// Returns the metered template, or the reason why there is none.
pub(super) fn rewrite(source: &str, syntax: &SyntaxConfig) -> Result<String, String> {
    check_shape(source, syntax)?;
    let parsed = parse(source, super::NAME, syntax.clone()).map_err(|error| error.to_string())?;
    let ast::Stmt::Template(template) = parsed else {
        return Err("it is no template".to_owned());
    };
    let mut writer = TemplateWriter {
        text: String::with_capacity(source.len() * 2),
        line: 1,
    };
    writer.template(&template.children)?;
    Ok(writer.text)
}

/// Rejects a template whose tree would be too deep for a stack.
fn check_shape(source: &str, syntax: &SyntaxConfig) -> Result<(), String> {
    let (mut operators, mut elifs) = (0, 0);
    for token in tokenize(source, false, syntax.clone()) {
        let (token, span) = token.map_err(|error| error.to_string())?;
        match token {
            Token::BlockStart | Token::VariableStart => operators = 0,
            Token::Ident("elif") => elifs += 1,
            Token::Ident("if" | "else" | "not" | "and" | "or" | "is" | "in")
            | Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::FloorDiv
            | Token::Pow
            | Token::Mod
            | Token::Dot
            | Token::Tilde
            | Token::Pipe
            | Token::Eq
            | Token::Ne
            | Token::Gt
            | Token::Gte
            | Token::Lt
            | Token::Lte
            | Token::BracketOpen
            | Token::ParenOpen => operators += 1,
            _ => {}
        }
        if operators > MAX_OPERATORS {
            return Err(format!(
                "its tag in line {} has more than {MAX_OPERATORS} operators",
                span.start_line
            ));
        }
        if elifs > MAX_ELIFS {
            return Err(format!("it has more than {MAX_ELIFS} elif tags"));
        }
    }
    Ok(())
}

struct TemplateWriter {
    text: String,
    /// The current line, from 1 on.
    line: u32,
}

type WriteResult = Result<(), String>;

impl TemplateWriter {
    fn put(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Opens a tag on its original line, so that errors name that line.
    fn open(&mut self, open: &str, span: Span) {
        self.put(open);
        while self.line < u32::from(span.start_line) {
            self.text.push('\n');
            self.line += 1;
        }
        self.text.push(' ');
    }

    fn separated<T>(
        &mut self,
        items: &[T],
        mut write: impl FnMut(&mut Self, &T) -> WriteResult,
    ) -> WriteResult {
        for (at, item) in items.iter().enumerate() {
            self.put(if at > 0 { ", " } else { "" });
            write(self, item)?;
        }
        Ok(())
    }

    fn quoted(&mut self, text: &str, newlines: Newlines) {
        self.text.push('"');
        for character in text.chars() {
            match character {
                '"' => self.put("\\\""),
                '\\' => self.put("\\\\"),
                '\n' if newlines == Newlines::Escaped => self.put("\\n"),
                '\n' => {
                    self.text.push('\n');
                    self.line += 1;
                }
                character => self.text.push(character),
            }
        }
        self.text.push('"');
    }
}

/// How line feeds are written. Lines of a text count as lines of the template; those of a constant
/// were written as an escape, or in one tag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Newlines {
    AsTheyAre,
    Escaped,
}
