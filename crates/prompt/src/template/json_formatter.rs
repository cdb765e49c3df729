//! JSON as Python's `json.dumps` writes it.

use std::fmt::Write as _;

use minijinja::{
    Error, ErrorKind,
    value::{Value, ValueKind},
};

use super::{
    meter::{MAX_DEPTH, charge},
    python::number,
};

/// The brackets of a container.
#[derive(Clone, Copy)]
struct JsonBrackets {
    open: char,
    close: char,
}

impl JsonBrackets {
    const LIST: Self = Self {
        open: '[',
        close: ']',
    };
    const MAP: Self = Self {
        open: '{',
        close: '}',
    };
}

/// Writes JSON with the given separators.
pub(super) struct JsonFormatter<'a> {
    pub(super) text: String,
    pub(super) indent: Option<usize>,
    pub(super) ascii: bool,
    pub(super) sorted: bool,
    pub(super) comma: &'a str,
    pub(super) colon: &'a str,
}

impl JsonFormatter<'_> {
    pub(super) fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "nested too deep"));
        }
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self
                .text
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.container(JsonBrackets::LIST, &items, depth, |json, item| {
                    json.write(item, depth + 1)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sorted {
                    keys.sort();
                }
                self.container(JsonBrackets::MAP, &keys, depth, |json, key| {
                    match key.as_str() {
                        Some(key) => json.string(key),
                        None => {
                            let mut inner = JsonFormatter {
                                text: String::new(),
                                ..*json
                            };
                            inner.write(key, MAX_DEPTH)?;
                            json.string(&inner.text);
                        }
                    }
                    json.text.push_str(json.colon);
                    json.write(&value.get_item(key)?, depth + 1)
                })?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("{kind} has no form in json"),
                ));
            }
        }
        Ok(())
    }

    fn container(
        &mut self,
        brackets: JsonBrackets,
        items: &[Value],
        depth: usize,
        mut each: impl FnMut(&mut Self, &Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.text.push(brackets.open);
        for (at, item) in items.iter().enumerate() {
            if at > 0 {
                self.text.push_str(self.comma);
            }
            self.line(depth + 1);
            // The text around an item; its own text was charged by its length, and grows little.
            charge(
                self.comma.len()
                    + self.colon.len()
                    + self.indent.map_or(0, |indent| indent.min(16) * (depth + 1)),
            )?;
            each(self, item)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.text.push(brackets.close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.text.push('\n');
            // The template's own number: an absurd one must not create an absurdly long string.
            self.text
                .extend(std::iter::repeat_n(' ', indent.min(16) * depth));
        }
    }

    fn string(&mut self, string: &str) {
        self.text.push('"');
        for character in string.chars() {
            match character {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                '\n' => self.text.push_str("\\n"),
                '\r' => self.text.push_str("\\r"),
                '\t' => self.text.push_str("\\t"),
                '\u{8}' => self.text.push_str("\\b"),
                '\u{c}' => self.text.push_str("\\f"),
                '\0'..='\u{1f}' => escape(&mut self.text, character),
                '\u{7f}'.. if self.ascii && character != '\u{7f}' => {
                    escape(&mut self.text, character)
                }
                _ => self.text.push(character),
            }
        }
        self.text.push('"');
    }
}

fn escape(text: &mut String, character: char) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        let _ = write!(text, "\\u{unit:04x}");
    }
}
