//! A tokenizer of Rust source: words, string literals and punctuation.
//!
//! It is sufficient to find attributes, modules and functions, and ignores the content of comments,
//! strings and character literals. It checks nothing: source that does not compile gives arbitrary
//! tokens.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceToken {
    pub(crate) what: TokenKind,
    /// Line number, from 1.
    pub(crate) line: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Word(String),
    /// The text between the quotes, with escapes unchanged.
    Text(String),
    Sign(char),
}

impl SourceToken {
    pub(crate) fn is_sign(&self, sign: char) -> bool {
        self.what == TokenKind::Sign(sign)
    }

    pub(crate) fn word(&self) -> Option<&str> {
        match &self.what {
            TokenKind::Word(word) => Some(word),
            _ => None,
        }
    }
}

pub(crate) fn tokens(source: &str) -> Vec<SourceToken> {
    let mut reader = TokenReader {
        rest: source,
        line: 1,
    };
    let mut found = Vec::new();
    while let Some(next) = reader.rest.chars().next() {
        let line = reader.line;
        let what = match next {
            _ if next.is_whitespace() => {
                reader.take(next.len_utf8());
                continue;
            }
            _ if reader.rest.starts_with("//") => {
                reader.take(reader.rest.find('\n').unwrap_or(reader.rest.len()));
                continue;
            }
            _ if reader.rest.starts_with("/*") => {
                reader.skip_block_comment();
                continue;
            }
            _ if next.is_alphanumeric() || next == '_' => match reader.string_behind_prefix() {
                Some(text) => TokenKind::Text(text),
                None => TokenKind::Word(reader.word()),
            },
            '"' => TokenKind::Text(reader.plain_string()),
            '\'' => {
                reader.skip_char_or_lifetime();
                continue;
            }
            sign => {
                reader.take(sign.len_utf8());
                TokenKind::Sign(sign)
            }
        };
        found.push(SourceToken { what, line });
    }
    found
}

struct TokenReader<'s> {
    rest: &'s str,
    line: usize,
}

impl<'s> TokenReader<'s> {
    fn take(&mut self, bytes: usize) -> &'s str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    fn word(&mut self) -> String {
        let end = self
            .rest
            .find(|letter: char| !letter.is_alphanumeric() && letter != '_');
        self.take(end.unwrap_or(self.rest.len())).to_owned()
    }

    /// Block comments nest.
    fn skip_block_comment(&mut self) {
        let mut depth = 0_u32;
        loop {
            if self.rest.starts_with("/*") {
                depth += 1;
                self.take(2);
            } else if self.rest.starts_with("*/") {
                depth -= 1;
                self.take(2);
                if depth == 0 {
                    return;
                }
            } else {
                let Some(next) = self.rest.chars().next() else {
                    return;
                };
                self.take(next.len_utf8());
            }
        }
    }

    /// Reads `b"..."`, `c"..."`, `r"..."`, `r#"..."#` and their combinations.
    fn string_behind_prefix(&mut self) -> Option<String> {
        let prefix = self
            .rest
            .find(|letter: char| !matches!(letter, 'b' | 'c' | 'r'))?;
        if prefix > 2 {
            return None;
        }
        let raw = self.rest[..prefix].contains('r');
        let hashes = if raw {
            self.rest[prefix..]
                .bytes()
                .take_while(|byte| *byte == b'#')
                .count()
        } else {
            0
        };
        if !self.rest[prefix + hashes..].starts_with('"') {
            return None;
        }
        self.take(prefix + hashes);
        if !raw {
            return Some(self.plain_string());
        }
        self.take(1);
        let end = format!("\"{}", "#".repeat(hashes));
        let length = self.rest.find(&end).unwrap_or(self.rest.len());
        let text = self.take(length).to_owned();
        self.take(end.len().min(self.rest.len()));
        Some(text)
    }

    fn plain_string(&mut self) -> String {
        self.take(1);
        let mut escaped = false;
        let length = self.rest.find(|letter: char| {
            let ends = letter == '"' && !escaped;
            escaped = letter == '\\' && !escaped;
            ends
        });
        let text = self.take(length.unwrap_or(self.rest.len())).to_owned();
        self.take(self.rest.len().min(1));
        text
    }

    /// `'x'` and `'\n'` are characters, `'x` is a lifetime.
    fn skip_char_or_lifetime(&mut self) {
        self.take(1);
        let mut letters = self.rest.chars();
        match letters.next() {
            Some('\\') => {
                // Skip the escaped character first, as it may be a quote.
                let escaped = letters.next().map_or(0, char::len_utf8);
                self.take(1 + escaped);
                let end = self.rest.find('\'').map_or(self.rest.len(), |at| at + 1);
                self.take(end);
            }
            Some(letter) if letters.next() == Some('\'') => {
                self.take(letter.len_utf8() + 1);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(source: &str) -> String {
        let parts = tokens(source).into_iter().map(|token| match token.what {
            TokenKind::Word(word) => word,
            TokenKind::Text(text) => format!("<{text}>"),
            TokenKind::Sign(sign) => sign.to_string(),
        });
        parts.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_are_skipped_and_may_nest() {
        assert_eq!(formatted("a // \" #[x]\nb /* /* ' */ \" */ c"), "a b c");
    }

    #[test]
    fn strings_end_as_in_rust() {
        assert_eq!(
            formatted(r##"f("a\"b", r#"c"d"#, b"e", br"f\", "\\")"##),
            r#"f ( <a\"b> , <c"d> , <e> , <f\> , <\\> )"#
        );
    }

    #[test]
    fn a_quote_may_be_a_character_or_a_lifetime() {
        assert_eq!(
            formatted(r#"'"' '\'' '\u{1}' &'a str 'x': b'"' "s""#),
            "& a str : b <s>"
        );
    }

    #[test]
    fn lines_are_counted_through_comments_and_strings() {
        let last = tokens("a /*\n\n*/ \"\n\" // x\nz").pop().expect("a token");
        assert_eq!(
            last,
            SourceToken {
                what: TokenKind::Word("z".into()),
                line: 5
            }
        );
    }

    #[test]
    fn truncated_source_ends_without_an_error() {
        for source in ["\"abc", "r#\"abc", "/* abc", "'", "'\\", "b", "r#"] {
            tokens(source);
        }
    }
}
