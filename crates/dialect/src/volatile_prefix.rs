//! Removes the line that agent clients put before the system prompt and change with every request,
//! and the cache markers that they move from message to message.
//!
//! Claude Code begins with
//! `x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=00000;`, a separate
//! block whose last value differs each time. A key over the beginning of a request must ignore it.

use std::borrow::Cow;

use crate::{Dialect, Edit, RawJson, Turn, json, json::write_string, splice};

const NAME: &str = "x-anthropic-billing-header:";

/// Returns the length of such a line at the start of a system prompt, in bytes: the name, its
/// values, and the line ends behind them.
fn volatile_prefix(text: &str) -> usize {
    let named = text
        .get(..NAME.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(NAME));
    if !named {
        return 0;
    }
    let mut at = NAME.len();
    while let Some(more) = text.get(at..).and_then(value) {
        at += more;
    }
    let rest = text.get(at..).unwrap_or_default();
    at + (rest.len() - rest.trim_start_matches(['\n', '\r']).len())
}

/// Returns the length of one ` name=value;`. The values follow each other without a line end, and
/// so may the prompt: only text of this form belongs to them.
fn value(text: &str) -> Option<usize> {
    let start = text.trim_start_matches(' ');
    let (name, rest) = start.split_once('=')?;
    let plain = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-')
    };
    if name.is_empty() || !name.bytes().all(plain) {
        return None;
    }
    let end = rest.find([';', '\n', '\r']).unwrap_or(rest.len());
    let closed = usize::from(rest.get(end..).is_some_and(|rest| rest.starts_with(';')));
    Some(text.len() - start.len() + name.len() + 1 + end + closed)
}

/// Returns the text without such a line.
pub(crate) fn steady_text(text: Cow<'_, str>) -> Cow<'_, str> {
    match volatile_prefix(&text) {
        0 => text,
        at => match text {
            Cow::Borrowed(text) => Cow::Borrowed(text.get(at..).unwrap_or_default()),
            Cow::Owned(text) => Cow::Owned(text.get(at..).unwrap_or_default().to_owned()),
        },
    }
}

/// Returns a chat message in the form that identifies its conversation: without the parts that
/// change from request to request without new content.
pub fn steady_turn<'a>(turn: &Turn<'a>) -> Cow<'a, str> {
    const MARKER: &str = "cache_control";
    let text = turn.raw.as_str();
    let Some(content) = turn.content else {
        return Cow::Borrowed(text);
    };
    let blocks = content.elements();
    // A plain text is searched at its beginning only: most messages are long texts without such a
    // line.
    let may_begin_with_it = match &blocks {
        Some(_) => content.as_str().contains(NAME),
        None => volatile_prefix(content.as_str().get(1..).unwrap_or_default()) > 0,
    };
    if may_begin_with_it
        && let Some(text) = crate::prefix_key::content_text(content)
        && volatile_prefix(&text) > 0
    {
        return Cow::Owned(steady_text(text).into_owned());
    }
    let Some(blocks) = blocks.filter(|_| text.contains(MARKER)) else {
        return Cow::Borrowed(text);
    };
    let without = |block: RawJson<'_>| {
        let cut = splice(block.as_str().as_bytes(), &[Edit::Remove(MARKER)])
            .ok()
            .and_then(|cut| String::from_utf8(cut).ok());
        cut.unwrap_or_else(|| block.as_str().to_owned())
    };
    let list: Vec<String> = blocks.map(without).collect();
    let list = format!("[{}]", list.join(","));
    let spliced = splice(
        text.as_bytes(),
        &[Edit::Set("content", &list), Edit::Remove(MARKER)],
    );
    spliced
        .ok()
        .and_then(|cut| String::from_utf8(cut).ok())
        .map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Returns the body without such a line before its system prompt; `None` if there is none.
pub fn without_volatile_prefix(dialect: Dialect, body: &[u8]) -> Option<Vec<u8>> {
    let text = json::utf8(body).ok().filter(|text| text.contains(NAME))?;
    let request = json::whole(text).ok()?;
    match dialect {
        Dialect::Messages => {
            let edit = shortened(request.member("system")?)?;
            let edit = edit
                .as_deref()
                .map_or(Edit::Remove("system"), |value| Edit::Set("system", value));
            splice(body, &[edit]).ok()
        }
        Dialect::Chat => {
            let messages = request.member("messages")?;
            let mut elements = messages.elements()?;
            let first = elements.next()?;
            let content = shortened(first.member("content")?)?;
            let mut list = String::with_capacity(messages.as_str().len());
            list.push('[');
            let mut rest = elements.peekable();
            if let Some(content) = content {
                let spliced =
                    splice(first.as_str().as_bytes(), &[Edit::Set("content", &content)]).ok()?;
                list.push_str(std::str::from_utf8(&spliced).ok()?);
                if rest.peek().is_some() {
                    list.push(',');
                }
            }
            list.push_str(&rest.map(RawJson::as_str).collect::<Vec<_>>().join(","));
            list.push(']');
            splice(body, &[Edit::Set("messages", &list)]).ok()
        }
        _ => None,
    }
}

/// Returns a content without such a line: `None` if it has none, and `Some(None)` if nothing
/// remains.
fn shortened(content: RawJson<'_>) -> Option<Option<String>> {
    let shorter = |text: &str| {
        let at = volatile_prefix(text);
        let rest = text.get(at..).unwrap_or_default();
        let mut quoted = String::with_capacity(rest.len() + 2);
        write_string(&mut quoted, rest);
        (at > 0).then(|| (!rest.is_empty()).then_some(quoted))
    };
    if let Some(text) = content.string() {
        return shorter(&text);
    }
    let mut blocks = content.elements()?;
    let first = blocks.next()?;
    let text = first.member("text").and_then(RawJson::string)?;
    let mut remaining = Vec::new();
    if let Some(rest) = shorter(&text)? {
        remaining.push(
            String::from_utf8(splice(first.as_str().as_bytes(), &[Edit::Set("text", &rest)]).ok()?)
                .ok()?,
        );
    }
    remaining.extend(blocks.map(|block| block.as_str().to_owned()));
    Some((!remaining.is_empty()).then(|| format!("[{}]", remaining.join(","))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str =
        "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;";

    fn stripped(dialect: Dialect, body: &str) -> Option<String> {
        without_volatile_prefix(dialect, body.as_bytes())
            .map(|body| String::from_utf8(body).expect("text"))
    }

    #[test]
    fn the_volatile_prefix_ends_with_its_values_or_its_line() {
        let rest = |text: &str| text[volatile_prefix(text)..].to_owned();
        assert_eq!(rest(LINE), "");
        assert_eq!(
            rest("x-anthropic-billing-header: cc_version=2.1.37; cch=a1;You are terse."),
            "You are terse."
        );
        assert_eq!(volatile_prefix("You are terse."), 0);
        assert_eq!(rest(&format!("{LINE}You are a=b; it")), "You are a=b; it");
        assert_eq!(rest(&format!("{LINE}\n\nYou")), "You");
        assert_eq!(rest("x-anthropic-billing-header: cch=1\nYou"), "You");
        assert_eq!(rest("X-Anthropic-Billing-Header: cch=é;ä"), "ä");
        assert_eq!(rest("x-anthropic"), "x-anthropic");
        assert_eq!(
            rest("say x-anthropic-billing-header: cch=1;"),
            "say x-anthropic-billing-header: cch=1;"
        );
    }

    #[test]
    fn a_message_is_compared_without_cache_markers_and_the_volatile_line() {
        let raw = |text: &str| {
            let mut steady = None;
            json::turns::walk_turns(&format!("[{text}]"), |turn| {
                steady = Some(steady_turn(turn).into_owned());
            });
            steady.expect("one message")
        };
        assert_eq!(
            raw(
                r#"{"role":"user","content":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}]}"#
            ),
            raw(r#"{"role":"user","content":[{"type":"text","text":"a"}]}"#)
        );
        assert_eq!(
            raw(r#"{"role":"system","content":"x-anthropic-billing-header: cch=1;You"}"#),
            raw(r#"{"role":"system","content":"x-anthropic-billing-header: cch=2;You"}"#)
        );
        assert_ne!(
            raw(r#"{"role":"system","content":"x-anthropic-billing-header: cch=1;You"}"#),
            raw(r#"{"role":"system","content":"x-anthropic-billing-header: cch=1;I"}"#)
        );
        assert_eq!(
            raw(r#"{"role":"user","content":"cache_control"}"#),
            r#"{"role":"user","content":"cache_control"}"#
        );
    }

    #[test]
    fn only_the_volatile_line_is_removed_from_a_body() {
        let blocks = format!(
            r#"{{"model": "m", "system": [{{"type":"text","text":"{LINE}"}}, {{"type":"text","text":"You"}}], "x": 1e2}}"#
        );
        assert_eq!(
            stripped(Dialect::Messages, &blocks).as_deref(),
            Some(r#"{"model": "m", "system": [{"type":"text","text":"You"}], "x": 1e2}"#)
        );
        let text = format!(r#"{{"system":"{LINE}\nYou"}}"#);
        assert_eq!(
            stripped(Dialect::Messages, &text).as_deref(),
            Some(r#"{"system":"You"}"#)
        );
        let alone = format!(r#"{{"a":1,"system":"{LINE}"}}"#);
        assert_eq!(
            stripped(Dialect::Messages, &alone).as_deref(),
            Some(r#"{"a":1}"#)
        );
        let chat = format!(
            r#"{{"messages":[{{"role":"system","content":"{LINE}You"}}, {{"role":"user","content":"{LINE}"}}]}}"#
        );
        assert_eq!(
            stripped(Dialect::Chat, &chat),
            Some(format!(
                r#"{{"messages":[{{"role":"system","content":"You"}},{{"role":"user","content":"{LINE}"}}]}}"#
            ))
        );
        for body in [
            r#"{"system":"You"}"#,
            r#"{"messages":[]}"#,
            "[",
            r#"{"system":7,"x":"x-anthropic-billing-header:"}"#,
        ] {
            assert_eq!(stripped(Dialect::Messages, body), None, "{body}");
            assert_eq!(stripped(Dialect::Chat, body), None, "{body}");
        }
    }
}
