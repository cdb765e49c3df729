//! The `/v1/chat/completions/render` query for a chat with images, audio or videos.
//!
//! It is the body of the chat itself: whatever decides the tokens of the generation is in it.

use std::time::Duration;

use dialect::{Edit, PromptPart, RequestView};
use sha2::{Digest as _, Sha256};

use crate::{
    engine_query::{EngineQuery, QueryKind},
    local,
};

/// Longest query, bytes: an engine would decode its images for longer than a request should wait.
pub(crate) const LONGEST: usize = 8 << 20;
/// Cost of a query per byte: searched, copied and hashed.
const COST_PER_BYTE: Duration = Duration::from_nanos(6);
/// Distinguishes the digests of these queries from those of `/tokenize`.
const DIGEST_PREFIX: &[u8] = b"render";

/// Returns the query for a chat; `None` for a chat of text, and for one with media that the engine
/// would have to fetch. A URL may answer once only, and the generation is what needs the answer.
pub(crate) fn build(view: &RequestView<'_>, body: &[u8]) -> Option<EngineQuery> {
    let PromptPart::Messages(messages) = &view.prompt else {
        return None;
    };
    if body.len() > LONGEST || prompt::text_only(messages.as_str()) {
        return None;
    }
    if !dialect::media_urls(body).all(|url| url.is_plain_data()) {
        return None;
    }
    let edits = [
        Edit::Remove("stream"),
        Edit::Remove("stream_options"),
        // Else the answer has the processed media, which can be larger than the chat.
        Edit::Set("return_mm_kwargs", "false"),
    ];
    let body = dialect::splice(body, &edits).ok()?;
    // The salt is in the body: an answer is for requests of the same one.
    let digest = Sha256::new()
        .chain_update(DIGEST_PREFIX)
        .chain_update(&body)
        .finalize()
        .into();
    Some(EngineQuery {
        kind: QueryKind::Render,
        body: body.into(),
        digest,
    })
}

/// Returns the approximate cost of [`build`] for a body of this many bytes.
pub(crate) fn cost(bytes: usize) -> Duration {
    // No longer query is built.
    local::cost_of(if bytes > LONGEST { 0 } else { bytes }, COST_PER_BYTE)
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use dialect::Dialect;
    use serde_json::{Value, json};

    use super::*;

    fn query(body: &Value) -> Option<EngineQuery> {
        let body = body.to_string();
        let view = dialect::view(Dialect::Chat, body.as_bytes()).expect("a good body");
        build(&view, body.as_bytes())
    }

    fn chat(part: &Value) -> Value {
        let content = json!([{"type": "text", "text": "look"}, part]);
        json!({"model": "m", "messages": [{"role": "user", "content": content}]})
    }

    fn image(url: &str) -> Value {
        json!({"type": "image_url", "image_url": {"url": url}})
    }

    const DATA: &str = "data:image/png;base64,AAAA";

    #[test]
    #[contract("D2")]
    fn a_chat_with_an_image_is_sent_whole_without_its_stream_and_without_tensors() {
        let mut body = chat(&image(DATA));
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        body["mm_processor_kwargs"] = json!({"max_pixels": 7});
        body["return_mm_kwargs"] = json!(true);
        let sent = query(&body).expect("it can be asked");
        let sent: Value = serde_json::from_slice(&sent.body).expect("JSON");
        let members = body.as_object_mut().expect("an object");
        members.remove("stream");
        members.remove("stream_options");
        members.insert("return_mm_kwargs".to_owned(), json!(false));
        assert_eq!(sent, body);
    }

    #[test]
    #[contract("S43")]
    fn only_media_in_the_chat_itself_are_rendered() {
        for (part, is_built) in [
            (image(DATA), true),
            (
                json!({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
                true,
            ),
            (
                json!({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}),
                true,
            ),
            (image("https://example.com/a.png"), false),
            (image("file:///etc/passwd"), false),
            (image(""), false),
            (json!({"type": "text", "text": DATA}), false),
        ] {
            assert_eq!(query(&chat(&part)).is_some(), is_built, "{part}");
        }
        let mut both = chat(&image(DATA));
        both["messages"][0]["content"][0] = image("https://example.com/a.png");
        assert!(query(&both).is_none(), "one of two is fetched");
    }

    #[test]
    fn a_chat_too_long_to_wait_for_is_not_rendered_and_costs_nothing() {
        let rest = chat(&image("data:")).to_string().len();
        for (length, is_built) in [(LONGEST, true), (LONGEST + 1, false)] {
            let body = chat(&image(&format!("data:{}", "A".repeat(length - rest))));
            assert_eq!(body.to_string().len(), length);
            assert_eq!(query(&body).is_some(), is_built);
            assert_eq!(cost(length) > Duration::from_millis(1), is_built);
        }
    }

    #[test]
    #[contract("S55", "G18")]
    fn equal_chats_are_one_query_and_other_images_or_salts_are_not() {
        let digest = |body: &Value| query(body).expect("it can be asked").digest;
        let own = chat(&image(DATA));
        let mut streamed = own.clone();
        streamed["stream"] = json!(true);
        assert_eq!(digest(&own), digest(&streamed));
        let mut salted = own.clone();
        salted["cache_salt"] = json!("a");
        let other = chat(&image("data:image/png;base64,AAAB"));
        for body in [salted, other] {
            assert_ne!(digest(&own), digest(&body), "{body}");
        }
    }
}
