//! Values that have arrived in part.

use crate::json::ObjectWriter;

/// An object that arrives in pieces; its members are in order of arrival.
#[derive(Debug, Default)]
pub(super) struct PartialObject {
    pub(super) entries: Vec<PartialMember>,
    /// Number of pieces so far.
    pub(super) pieces: u64,
}

/// A member of an object.
#[derive(Debug)]
pub(super) struct PartialMember {
    pub(super) name: String,
    pub(super) value: PartialValue,
    /// The last piece that contains it.
    pub(super) piece: u64,
}

/// A partial value.
#[derive(Debug, Default)]
pub(super) enum PartialValue {
    #[default]
    Null,
    /// The text between the quotes, and the length of its last piece.
    Text {
        inner: String,
        last: usize,
    },
    /// The text between the brackets.
    List(String),
    /// One value.
    One(String),
    Object(PartialObject),
    /// Objects by their index.
    Indexed(Vec<(u64, PartialObject)>),
}

impl PartialObject {
    pub(super) fn get(&self, name: &str) -> Option<&PartialValue> {
        self.entries
            .iter()
            .find(|entry| entry.name == name)
            .map(|entry| &entry.value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &PartialValue)> {
        self.entries
            .iter()
            .map(|entry| (&*entry.name, &entry.value))
    }

    /// Writes the member if it is present.
    pub(super) fn write(&self, name: &str, object: &mut ObjectWriter<'_>) {
        if let Some(value) = self.get(name) {
            value.write(object.key(name));
        }
    }
}

impl PartialValue {
    /// Returns whether the value is a non-empty text, list or object.
    pub(super) fn has_content(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Text { inner, .. } => !inner.is_empty(),
            Self::List(inner) => !inner.is_empty(),
            Self::One(text) => !is_empty_value(text),
            Self::Object(members) => !members.entries.is_empty(),
            Self::Indexed(all) => !all.is_empty(),
        }
    }

    pub(super) fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Text { inner, .. } => out.extend(["\"", inner, "\""]),
            Self::List(inner) => out.extend(["[", inner, "]"]),
            Self::One(text) => out.push_str(text),
            Self::Object(members) => write_object(members, out),
            Self::Indexed(all) => {
                let mut comma = "[";
                for (_, members) in all {
                    out.push_str(comma);
                    write_object(members, out);
                    comma = ",";
                }
                out.push_str(if all.is_empty() { "[]" } else { "]" });
            }
        }
    }

    pub(super) fn raw(&self) -> &str {
        match self {
            Self::One(text) => text,
            Self::Null => "null",
            // These are not compared: they count as non-empty.
            Self::Text { .. } | Self::List(_) | Self::Object(_) | Self::Indexed(_) => "[0]",
        }
    }
}

fn write_object(members: &PartialObject, out: &mut String) {
    let mut object = ObjectWriter::open(out);
    for (name, value) in members.iter() {
        value.write(object.key(name));
    }
    object.close();
}

/// Returns whether the value is `null` or as empty as that.
pub(super) fn is_empty_value(text: &str) -> bool {
    matches!(text, "null" | "\"\"" | "[]" | "{}")
}
