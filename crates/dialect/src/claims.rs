//! What a body names at its top level that a client's rights may exclude: models, adapters, and
//! fields that override a decision.

use crate::json::{self, RawJson};

/// Fields by which servers choose models and adapters beside `model`: SGLang, TensorRT-LLM,
/// llama.cpp, mlx-lm, and gateways with lists of models.
const ADAPTERS: [&str; 10] = [
    "lora_path",
    "lora_request",
    "lora_id",
    "lora",
    "adapters",
    "adapter",
    "adapter_id",
    "draft_model",
    "models",
    "fallbacks",
];

/// The models that a body names, and a field among those that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyClaims<'f> {
    /// Every model and every adapter that it names.
    pub models: Vec<String>,
    /// A field of adapters in a form that names none, such as a path.
    pub unnamed_adapter: Option<&'static str>,
    /// The first of the fields that were asked for.
    pub field: Option<&'f str>,
}

/// Reads the claims of a body in one walk. Names of members count without case, as servers in Go
/// read them. `fields`: those of which the first is reported; `null`
/// counts as absent. Of a body that is not one JSON object they may lack some: a later stage refuses
/// it.
///
/// ```
/// let claims = dialect::claims(br#"{"model": "m", "lora_path": ["a", null], "rid": "1"}"#, &["rid"]);
/// assert_eq!((claims.models, claims.field), (vec!["m".to_owned(), "a".to_owned()], Some("rid")));
/// ```
pub fn claims<'f>(body: &[u8], fields: &[&'f str]) -> BodyClaims<'f> {
    let mut claims = BodyClaims::default();
    let Ok(text) = json::utf8(body) else {
        return claims;
    };
    for (key, value) in json::members(text).map_while(Result::ok) {
        if value.is_null() {
            continue;
        }
        let key = json::decode(key);
        if key.eq_ignore_ascii_case("model") {
            claims.models.extend(value.string().map(Into::into));
        } else if let Some(adapter) = ADAPTERS
            .into_iter()
            .find(|name| key.eq_ignore_ascii_case(name))
        {
            match names(value) {
                Some(names) => claims.models.extend(names),
                None => claims.unnamed_adapter = Some(adapter),
            }
        } else if claims.field.is_none() {
            claims.field = fields
                .iter()
                .copied()
                .find(|field| key.eq_ignore_ascii_case(field));
        }
    }
    claims
}

/// Returns the text of the last member with this name, as it stands in the body; `null` counts as
/// absent. A body without that text is not walked, so a name that is written with escapes is not
/// found.
pub fn raw_member(body: &[u8], name: &str) -> Option<String> {
    memchr::memmem::find(body, name.as_bytes())?;
    let text = json::utf8(body).ok()?;
    let members = json::members(text).map_while(Result::ok);
    let named = members.filter(|(key, _)| json::decode(key) == name);
    let value = named.last()?.1;
    (!value.is_null()).then(|| value.as_str().to_owned())
}

/// Returns the names in a text, or in a list of texts and `null`; an empty text names nothing.
fn names(value: RawJson<'_>) -> Option<Vec<String>> {
    let name = |value: RawJson<'_>| -> Option<Option<String>> {
        if value.is_null() {
            return Some(None);
        }
        let text = value.string()?.into_owned();
        Some(Some(text).filter(|text| !text.is_empty()))
    };
    let names: Vec<Option<String>> = match value.elements() {
        Some(elements) => elements.map(name).collect::<Option<_>>()?,
        None => vec![name(value)?],
    };
    Some(names.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    #[test]
    #[contract("V34")]
    fn every_model_and_adapter_that_a_body_names_is_found_in_any_spelling() {
        for (body, models) in [
            (r#"{"model":"a"}"#, &["a"][..]),
            (r#"{"mod\u0065l":"\u0061"}"#, &["a"]),
            (r#"{"model":"a","model":"b"}"#, &["a", "b"]),
            (r#"{"model":"a","Model":"b","MODEL":"c"}"#, &["a", "b", "c"]),
            (
                r#"{"model":"a","models":["b"],"Fallbacks":["c"]}"#,
                &["a", "b", "c"],
            ),
            (r#"{"model":"a","lora_path":"x"}"#, &["a", "x"]),
            (
                r#"{"lora_path":["x",null,"y",""],"model":null}"#,
                &["x", "y"],
            ),
            (r#"{"lora_path":null,"model":7}"#, &[]),
            (r#"{"messages":[{"model":"b"}]}"#, &[]),
            ("[1]", &[]),
            ("", &[]),
            ("\u{feff}{", &[]),
        ] {
            let claims = claims(body.as_bytes(), &[]);
            assert_eq!(claims.models, models, "{body}");
            assert_eq!(claims.unnamed_adapter, None, "{body}");
        }
        assert_eq!(
            claims(b"{\"model\":\"\xff\"}", &[]).models,
            Vec::<String>::new()
        );
    }

    #[test]
    #[contract("V34")]
    fn an_adapter_in_another_form_than_a_name_is_reported() {
        for (body, field) in [
            (r#"{"lora_path":7}"#, Some("lora_path")),
            (r#"{"lora_path":["a",["b"]]}"#, Some("lora_path")),
            (
                r#"{"lora_request":{"lora_name":"a"}}"#,
                Some("lora_request"),
            ),
            (r#"{"lora_request":null}"#, None),
            (r#"{"lora":[{"id":0,"scale":1.0}]}"#, Some("lora")),
        ] {
            assert_eq!(
                claims(body.as_bytes(), &[]).unnamed_adapter,
                field,
                "{body}"
            );
        }
    }

    #[test]
    fn the_last_member_of_a_name_is_returned_as_it_stands_there() {
        for (body, value) in [
            (r#"{"cache_salt": "a\u0062" }"#, Some(r#""a\u0062""#)),
            (r#"{"cache_salt":1,"x":{"cache_salt":2}}"#, Some("1")),
            (r#"{"cache_salt":"a","cache_salt":["b"]}"#, Some(r#"["b"]"#)),
            (r#"{"cache_salt":null}"#, None),
            (r#"{"x":"cache_salt"}"#, None),
            ("cache_salt", None),
        ] {
            let found = raw_member(body.as_bytes(), "cache_salt");
            assert_eq!(found.as_deref(), value, "{body}");
        }
    }

    #[test]
    fn the_first_field_that_was_asked_for_and_is_not_null_is_reported() {
        let fields = ["priority", "rid"];
        for (body, field) in [
            (r#"{"rid":"1","priority":2}"#, Some("rid")),
            (r#"{"rid":null,"priority":0}"#, Some("priority")),
            (r#"{"Priority":0}"#, Some("priority")),
            (r#"{"extra":{"rid":"1"}}"#, None),
        ] {
            assert_eq!(claims(body.as_bytes(), &fields).field, field, "{body}");
        }
    }
}
