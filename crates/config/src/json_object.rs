//! Reads an object of JSON into the tree in which settings are checked. It takes a quarter of the time
//! of the YAML parser, which a file of 100,000 keys needs.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value as Json;
use settings::{LocatedValue, MapEntry, ValueNode, ValueOrigin};

/// Returns the object that is this whole text, with this origin for all of its parts; `None` if the
/// text is no JSON, no object, or an object that has a member twice.
pub(crate) fn json_object(text: &str, origin: &ValueOrigin) -> Option<LocatedValue> {
    let Members(members) = serde_json::from_str(text).ok()?;
    Some(map(members, origin))
}

/// The members of the outermost object, in their order, each once.
struct Members(Vec<(String, Json)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Members, A::Error> {
        let mut members: Vec<(String, Json)> = Vec::new();
        while let Some((name, value)) = access.next_entry::<String, Json>()? {
            if members.iter().any(|(known, _)| *known == name) {
                return Err(A::Error::custom("a member stands twice"));
            }
            members.push((name, value));
        }
        Ok(Members(members))
    }
}

fn map(members: impl IntoIterator<Item = (String, Json)>, origin: &ValueOrigin) -> LocatedValue {
    let entries = members.into_iter().map(|(key, value)| MapEntry {
        key,
        origin: origin.clone(),
        value: located(value, origin),
    });
    LocatedValue {
        node: ValueNode::Map(entries.collect()),
        origin: origin.clone(),
    }
}

fn located(value: Json, origin: &ValueOrigin) -> LocatedValue {
    let node = match value {
        Json::Null => ValueNode::Null,
        Json::Bool(value) => ValueNode::Bool(value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => ValueNode::Int(value.into()),
            (None, Some(value)) => ValueNode::Int(value.into()),
            (None, None) => ValueNode::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => ValueNode::Text(text.into()),
        Json::Array(items) => {
            let items = items.into_iter().map(|item| located(item, origin));
            ValueNode::List(items.collect())
        }
        Json::Object(members) => return map(members, origin),
    };
    LocatedValue {
        node,
        origin: origin.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Json> {
        let origin = ValueOrigin::File { line: 7, column: 1 };
        let tree = json_object(text, &origin)?;
        assert_eq!(tree.origin, origin);
        Some(tree.to_json())
    }

    #[test]
    fn an_object_keeps_its_values_and_their_order() {
        let text = r#"{"b":[1,-2,18446744073709551615,0.5],"a":{"c":null,"d":true},"e":"${X}"}"#;
        assert_eq!(read(text).map(|it| it.to_string()).as_deref(), Some(text));
    }

    #[test]
    fn other_texts_and_a_member_that_stands_twice_are_refused() {
        for text in [
            "",
            "1",
            "[]",
            "null",
            "{",
            "{} {}",
            "{a: 1}",
            "{'a': 1}",
            "{\"a\": 1,}",
            "{\"a\":1,\"a\":1}",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn deep_values_are_refused() {
        let text = format!("{{\"a\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
        assert_eq!(read(&text), None);
    }
}
