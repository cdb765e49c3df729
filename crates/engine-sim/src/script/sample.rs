//! Samples a value that a JSON schema allows.
//!
//! Objects have their required properties, lists one element, choices their first. It does not read
//! `pattern` and conditional schemas (`if`, `not`, `dependentSchemas`): their additional
//! requirements may be violated.

use serde_json::{Map, Value};

use super::word_source::WordSource;

/// Maximum nesting of schemas.
const MOST_DEPTH: usize = 24;
/// Maximum number of values in one value.
const MOST_VALUES: usize = 4_096;
/// Maximum number of elements in one list.
const MOST_ELEMENTS: u64 = 64;
/// Maximum number of characters in one text.
const MOST_CHARACTERS: u64 = 4_096;

/// Returns a value that `schema` allows; `null` beyond the bounds.
pub(super) fn sample(schema: &Value, words: &mut WordSource) -> Value {
    Sampler {
        root: schema,
        words,
        left: MOST_VALUES,
    }
    .value(schema, 0)
}

struct Sampler<'a> {
    root: &'a Value,
    words: &'a mut WordSource,
    left: usize,
}

impl Sampler<'_> {
    fn value(&mut self, schema: &Value, depth: usize) -> Value {
        if depth > MOST_DEPTH || self.left == 0 {
            return Value::Null;
        }
        self.left -= 1;
        let Value::Object(schema) = schema else {
            return self.words.word().into();
        };
        if let Some(Value::String(pointer)) = schema.get("$ref") {
            let target = pointer
                .strip_prefix('#')
                .and_then(|path| self.root.pointer(path));
            return target.map_or(Value::Null, |target| self.value(target, depth + 1));
        }
        if let Some(only) = schema.get("const") {
            return only.clone();
        }
        if let Some(Value::Array(choices)) = schema.get("enum") {
            return choices.first().cloned().unwrap_or_default();
        }
        if let Some(merged) = self.merged(schema) {
            return self.value(&merged, depth + 1);
        }
        match kind(schema) {
            "object" => self.object(schema, depth),
            "array" => self.list(schema, depth),
            "integer" => {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "out of range, the nearest is as good"
                )]
                let number = self.number(schema, 1.0) as i64;
                number.into()
            }
            "number" => self.fraction(schema),
            "boolean" => true.into(),
            "null" => Value::Null,
            _ => self.text(schema).into(),
        }
    }

    /// Merges the schema with the first of its choices, or all of its parts.
    fn merged(&self, schema: &Map<String, Value>) -> Option<Value> {
        let (key, parts) = ["allOf", "anyOf", "oneOf"].iter().find_map(|key| {
            schema
                .get(*key)
                .and_then(Value::as_array)
                .map(|parts| (*key, parts))
        })?;
        let parts: Vec<&Value> = if key == "allOf" {
            parts.iter().collect()
        } else {
            parts
                .iter()
                .find(|part| part["type"] != "null")
                .or(parts.first())
                .into_iter()
                .collect()
        };
        let mut whole = schema.clone();
        whole.shift_remove(key);
        for part in parts {
            let part = match part
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|pointer| pointer.strip_prefix('#'))
            {
                Some(path) => self.root.pointer(path).unwrap_or(part),
                None => part,
            };
            for (key, value) in part.as_object().into_iter().flatten() {
                match (whole.get_mut(key), value) {
                    (Some(Value::Object(own)), Value::Object(more)) => own.extend(more.clone()),
                    (Some(Value::Array(own)), Value::Array(more)) if key == "required" => {
                        own.extend(more.clone())
                    }
                    (Some(_), _) => {}
                    (None, value) => {
                        whole.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        Some(Value::Object(whole))
    }

    fn object(&mut self, schema: &Map<String, Value>, depth: usize) -> Value {
        let none = Map::new();
        let properties = schema
            .get("properties")
            .and_then(Value::as_object)
            .unwrap_or(&none);
        let required: Vec<&str> = schema
            .get("required")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let least = schema
            .get("minProperties")
            .and_then(Value::as_u64)
            .unwrap_or(0);
        let mut object = Map::new();
        // In the schema's order, as models write them.
        for (name, property) in properties {
            if required.contains(&name.as_str()) {
                object.insert(name.clone(), self.value(property, depth + 1));
            }
        }
        let other = schema
            .get("additionalProperties")
            .cloned()
            .unwrap_or(Value::Bool(true));
        for name in required {
            if !object.contains_key(name) {
                object.insert(name.to_owned(), self.value(&other, depth + 1));
            }
        }
        for (name, property) in properties {
            if (object.len() as u64) < least && !object.contains_key(name) {
                object.insert(name.clone(), self.value(property, depth + 1));
            }
        }
        Value::Object(object)
    }

    fn list(&mut self, schema: &Map<String, Value>, depth: usize) -> Value {
        let count = |key: &str| schema.get(key).and_then(Value::as_u64);
        let first = schema
            .get("prefixItems")
            .and_then(Value::as_array)
            .map_or(&[][..], Vec::as_slice);
        let rest = schema.get("items").cloned().unwrap_or(Value::Bool(true));
        let length = if rest == false {
            first.len() as u64
        } else {
            1.max(first.len() as u64)
        };
        let length = length
            .max(count("minItems").unwrap_or(0))
            .min(count("maxItems").unwrap_or(u64::MAX));
        let length = usize::try_from(length.min(MOST_ELEMENTS)).unwrap_or(0);
        Value::Array(
            (0..length)
                .map(|index| self.value(first.get(index).unwrap_or(&rest), depth + 1))
                .collect(),
        )
    }

    fn fraction(&mut self, schema: &Map<String, Value>) -> Value {
        let number = self.number(schema, 0.5);
        serde_json::Number::from_f64(number).map_or(Value::Null, Value::Number)
    }

    /// Returns a number in the schema's bounds, in steps of `multipleOf` or else of `step`.
    fn number(&mut self, schema: &Map<String, Value>, step: f64) -> f64 {
        let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
        let step = bound("multipleOf")
            .filter(|step| *step > 0.0)
            .unwrap_or(step);
        let up = |bound: f64| (bound / step).ceil() * step;
        let down = |bound: f64| (bound / step).floor() * step;
        let above = bound("exclusiveMinimum").map(|least| {
            if up(least) > least {
                up(least)
            } else {
                up(least) + step
            }
        });
        let below = bound("exclusiveMaximum").map(|most| {
            if down(most) < most {
                down(most)
            } else {
                down(most) - step
            }
        });
        let least = [bound("minimum").map(up), above]
            .into_iter()
            .flatten()
            .reduce(f64::max);
        let most = [bound("maximum").map(down), below]
            .into_iter()
            .flatten()
            .reduce(f64::min);
        let drawn = f64::from(u8::try_from(self.words.below(100)).unwrap_or(0)) * step;
        let drawn = least.map_or(drawn, |least| if drawn < least { least } else { drawn });
        most.map_or(drawn, |most| if drawn > most { most } else { drawn })
    }

    fn text(&mut self, schema: &Map<String, Value>) -> String {
        let word = self.words.word();
        let text = match schema
            .get("format")
            .and_then(Value::as_str)
            .unwrap_or_default()
        {
            "date-time" => return "2026-01-02T03:04:05Z".to_owned(),
            "date" => return "2026-01-02".to_owned(),
            "time" => return "03:04:05Z".to_owned(),
            "duration" => return "PT5M".to_owned(),
            "email" => format!("{word}@example.com"),
            "hostname" => format!("{word}.example.com"),
            "uri" | "url" => format!("https://example.com/{word}"),
            "uuid" => return "123e4567-e89b-42d3-a456-426614174000".to_owned(),
            "ipv4" => return "192.0.2.1".to_owned(),
            "ipv6" => return "2001:db8::1".to_owned(),
            _ => word,
        };
        let count = |key: &str| schema.get(key).and_then(Value::as_u64);
        let least =
            usize::try_from(count("minLength").unwrap_or(0).min(MOST_CHARACTERS)).unwrap_or(0);
        let most = count("maxLength")
            .and_then(|most| usize::try_from(most).ok())
            .unwrap_or(usize::MAX);
        let filled = text.chars().chain(std::iter::repeat('x'));
        filled
            .take(text.chars().count().max(least).min(most))
            .collect()
    }
}

/// Returns the type of a schema; a text if it has none.
fn kind(schema: &Map<String, Value>) -> &str {
    let named = match schema.get("type") {
        Some(Value::String(kind)) => Some(kind.as_str()),
        Some(Value::Array(kinds)) => {
            let kinds = || kinds.iter().filter_map(Value::as_str);
            kinds()
                .find(|kind| *kind != "null")
                .or_else(|| kinds().next())
        }
        _ => None,
    };
    let has = |key: &str| schema.contains_key(key);
    match named {
        Some(kind) => kind,
        None if has("properties") || has("required") => "object",
        None if has("items") || has("prefixItems") => "array",
        None if has("minimum") || has("maximum") || has("multipleOf") => "number",
        None => "string",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::script::word_source::any_words;

    fn of(schema: &Value) -> Value {
        sample(schema, &mut any_words())
    }

    #[test]
    fn an_object_has_its_required_properties_in_the_schemas_order() {
        let schema = json!({
            "type": "object",
            "properties": {"unit": {"enum": ["C", "F"]}, "city": {"type": "string"}, "note": {"type": "string"}},
            "required": ["city", "unit"],
        });
        let value = of(&schema);
        assert_eq!(
            value.as_object().unwrap().keys().collect::<Vec<_>>(),
            ["unit", "city"]
        );
        assert_eq!(value["unit"], "C");
        assert!(value["city"].as_str().is_some_and(|city| !city.is_empty()));
    }

    #[test]
    fn references_and_choices_are_followed() {
        let schema = json!({
            "$defs": {"step": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}},
            "type": "object",
            "properties": {
                "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}},
                "maybe": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
                "both": {"allOf": [{"$ref": "#/$defs/step"}, {"required": ["m"], "properties": {"m": {"const": 7}}}]},
            },
            "required": ["steps", "maybe", "both"],
        });
        let value = of(&schema);
        assert!(value["steps"][0]["n"].is_i64());
        assert_eq!(value["maybe"], true);
        assert_eq!(value["both"]["m"], 7);
        assert!(value["both"]["n"].is_i64());
    }

    #[test]
    fn bounds_of_numbers_strings_and_arrays_are_respected() {
        let number = |schema: Value| of(&schema).as_f64().unwrap();
        assert_eq!(
            number(json!({"type": "integer", "minimum": 1_000})),
            1_000.0
        );
        assert_eq!(
            number(json!({"type": "integer", "exclusiveMinimum": 200, "maximum": 201})),
            201.0
        );
        assert_eq!(
            number(json!({"type": "number", "exclusiveMaximum": 0, "multipleOf": 0.25})),
            -0.25
        );
        assert_eq!(
            of(&json!({"type": "string", "minLength": 9, "maxLength": 9}))
                .as_str()
                .unwrap()
                .len(),
            9
        );
        assert_eq!(
            of(&json!({"type": "array", "items": {"type": "null"}, "minItems": 3})),
            json!([null, null, null])
        );
        assert_eq!(of(&json!({"type": "array", "maxItems": 0})), json!([]));
    }

    #[test]
    fn a_recursive_schema_is_cut_off() {
        let endless = json!({"type": "array", "minItems": 9, "items": {"$ref": "#"}});
        assert!(of(&endless).is_array());
        assert_eq!(of(&json!({"$ref": "#"})), Value::Null);
    }
}
