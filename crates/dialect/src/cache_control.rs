//! Marks the system prompt of a message as cacheable, for servers that cache only marked blocks
//! (contract CK21).

use crate::{Edit, RawJson, json, json::write_string, splice};

/// Maximum number of markers in one request.
const MOST: usize = 4;
const MARKER: &str = "cache_control";
const EPHEMERAL: &str = r#"{"type":"ephemeral"}"#;

/// Returns the body with markers on its system blocks; if the limit does not allow all, the last
/// blocks get them, because a marker covers everything before it. `None` if there is nothing to
/// mark.
///
/// ```
/// let body = br#"{"system":"You are terse.","max_tokens":9}"#;
/// assert_eq!(
///     dialect::with_cache_control(body).unwrap(),
///     br#"{"system":[{"type":"text","text":"You are terse.","cache_control":{"type":"ephemeral"}}],"max_tokens":9}"#
/// );
/// ```
pub fn with_cache_control(body: &[u8]) -> Option<Vec<u8>> {
    let body_json = json::object(body)?;
    let left = MOST.saturating_sub(markers(body_json.as_str()));
    let system = body_json.member("system")?;
    if left == 0 {
        return None;
    }
    if let Some(prompt) = system.string() {
        if prompt.is_empty() {
            return None;
        }
        let mut block = String::with_capacity(prompt.len() + 80);
        block.push_str(r#"[{"type":"text","text":"#);
        write_string(&mut block, &prompt);
        block.push_str(r#","cache_control":"#);
        block.push_str(EPHEMERAL);
        block.push_str("}]");
        return splice(body, &[Edit::Set("system", &block)]).ok();
    }
    let mut blocks: Vec<(RawJson<'_>, Option<String>)> =
        system.elements()?.map(|block| (block, None)).collect();
    for (block, marked) in blocks
        .iter_mut()
        .rev()
        .filter(|(block, _)| may_be_marked(*block))
        .take(left)
    {
        let spliced = splice(block.as_str().as_bytes(), &[Edit::Set(MARKER, EPHEMERAL)]).ok()?;
        *marked = Some(String::from_utf8(spliced).ok()?);
    }
    let any = blocks.iter().any(|(_, marked)| marked.is_some());
    let blocks: Vec<&str> = blocks
        .iter()
        .map(|(block, marked)| marked.as_deref().unwrap_or(block.as_str()))
        .collect();
    let list = format!("[{}]", blocks.join(","));
    any.then(|| splice(body, &[Edit::Set("system", &list)]).ok())
        .flatten()
}

/// Whether the block is a text without a marker. An empty text may have none.
fn may_be_marked(block: RawJson<'_>) -> bool {
    let is_text = block.member("type").and_then(RawJson::string).as_deref() == Some("text");
    let has_text = block
        .member("text")
        .and_then(RawJson::string)
        .is_some_and(|text| !text.is_empty());
    is_text && has_text && block.member(MARKER).is_none()
}

/// Counts the markers anywhere in the body by their name. Another member of that name counts too:
/// then one marker fewer is set.
fn markers(text: &str) -> usize {
    let is_key = |rest: &str| rest.trim_start().starts_with(':');
    text.split("\"cache_control\"")
        .skip(1)
        .filter(|rest| is_key(rest))
        .count()
}

#[cfg(test)]
mod tests {
    use contract_id::contract;

    use super::*;

    fn marked(body: &str) -> Option<String> {
        with_cache_control(body.as_bytes()).map(|body| String::from_utf8(body).expect("text"))
    }

    const BLOCK: &str = r#"{"type":"text","text":"a"}"#;
    const MARKED: &str = r#"{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}"#;

    #[test]
    #[contract("CK21")]
    fn every_system_block_gets_a_marker_and_other_bytes_are_unchanged() {
        let body = format!(r#"{{ "x": 1e2, "system": [{BLOCK},{BLOCK}], "y" :"ä"}}"#);
        assert_eq!(
            marked(&body),
            Some(format!(
                r#"{{ "x": 1e2, "system": [{MARKED},{MARKED}], "y" :"ä"}}"#
            ))
        );
    }

    #[test]
    #[contract("CK21")]
    fn existing_markers_are_unchanged() {
        let own = r#"{"type":"text","text":"a","cache_control":{"type":"ephemeral","ttl":"1h"}}"#;
        assert_eq!(marked(&format!(r#"{{"system":[{own}]}}"#)), None);
        assert_eq!(
            marked(&format!(r#"{{"system":[{own},{BLOCK}]}}"#)),
            Some(format!(r#"{{"system":[{own},{MARKED}]}}"#))
        );
    }

    #[test]
    #[contract("CK21")]
    fn a_request_never_has_more_than_four() {
        let six = [BLOCK; 6].join(",");
        let four = marked(&format!(r#"{{"system":[{six}]}}"#)).expect("marked");
        assert_eq!(
            four,
            format!(
                r#"{{"system":[{}]}}"#,
                [BLOCK, BLOCK, MARKED, MARKED, MARKED, MARKED].join(",")
            )
        );
        let prompt = format!(
            r#"{{"messages":[{{"role":"user","content":[{}]}}],"system":[{six}]}}"#,
            [MARKED; 3].join(",")
        );
        assert_eq!(markers(&marked(&prompt).expect("one more")), 4);
        let full = format!(
            r#"{{"messages":[{{"role":"user","content":[{}]}}],"system":"a"}}"#,
            [MARKED; 4].join(",")
        );
        assert_eq!(marked(&full), None);
    }

    #[test]
    #[contract("CK21")]
    fn without_a_system_prompt_nothing_changes() {
        for body in [
            r#"{"messages":[]}"#,
            r#"{"system":""}"#,
            r#"{"system":[]}"#,
            r#"{"system":null}"#,
            r#"{"system":7}"#,
            "[",
        ] {
            assert_eq!(marked(body), None, "{body}");
        }
        assert!(marked(r#"{"system":"say \"cache_control\": four times"}"#).is_some());
    }
}
