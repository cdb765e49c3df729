//! Answers of an engine's `/v1/chat/completions/render`.
//!
//! The answer is the request of token ids that the chat becomes, with the hash and the place of
//! each item in `features`.

use dialect::{Dialect, PromptPart};

use crate::{given, token_cache::PromptTokens};

/// Longest answer without tensors, bytes: some 500,000 token ids.
pub(crate) const LONGEST: usize = 4 << 20;
/// What begins the processed media in `features`, tens of megabytes from engines that do not know
/// the field of the query that leaves them out. Tokens, hashes and places are before them. No text
/// in the answer contains this: its quotes are escaped there.
pub(crate) const TENSORS: &[u8] = br#","kwargs_data":{"#;
/// Ends an answer that ends before its tensors.
const END: &[u8] = b"}}";
/// Most items of a prompt.
const MOST_ITEMS: usize = 1024;

/// Reads an answer that ends before its tensors.
pub(crate) fn read_cut(answer: &[u8]) -> Option<PromptTokens> {
    read(&[answer, END].concat())
}

/// Returns the tokens and items; `None` without items, or if a place is outside the prompt.
pub(crate) fn read(answer: &[u8]) -> Option<PromptTokens> {
    let view = dialect::view(Dialect::TokenIds, answer).ok()?;
    let PromptPart::TokenIdsWithMedia { ids, media } = view.prompt else {
        return None;
    };
    let is_inside =
        |offset: u32, length: u32| u64::from(offset) + u64::from(length) <= ids.len() as u64;
    if media.len() > MOST_ITEMS || !media.iter().all(|item| is_inside(item.offset, item.length)) {
        return None;
    }
    Some(PromptTokens {
        media: given::prompt_media(&media)?,
        ids: ids.into(),
    })
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use kv_blocks::{MediaItem, PromptMedia};

    use super::*;

    fn answer(features: &str) -> String {
        format!(
            r#"{{"request_id":"chatcmpl-1","token_ids":[1,2,9,9,9,4,8,8],"token_offsets":null,"features":{features},
                "sampling_params":{{"n":1,"temperature":1.0,"stop":[],"max_tokens":32}},"model":"m","stream":false,
                "stream_options":null,"cache_salt":null,"priority":0,"kv_transfer_params":null}}"#
        )
    }

    #[test]
    #[contract("D2")]
    fn an_answer_has_the_tokens_and_each_items_hash_and_place() {
        let answer = answer(
            r#"{"mm_hashes":{"image":["a1"],"audio":["b2"]},"mm_metadata":null,
                "mm_placeholders":{"audio":[{"offset":6,"length":2}],"image":[{"offset":2,"length":3}]},
                "kwargs_data":{"image":["AAAA"],"audio":[null]}}"#,
        );
        let item = |identifier: &str, offset, length| MediaItem {
            identifier: identifier.into(),
            offset,
            length,
        };
        let items = vec![item("a1", 2, 3), item("b2", 6, 2)];
        let found = read(answer.as_bytes()).expect("a whole answer");
        assert_eq!(*found.ids, [1, 2, 9, 9, 9, 4, 8, 8]);
        assert_eq!(Some(found.media), PromptMedia::new(items));
    }

    #[test]
    #[contract("D2")]
    fn an_answer_that_ends_before_its_tensors_is_read_like_a_whole_one() {
        let answer = answer(
            r#"{"mm_hashes":{"image":["a\",\"kwargs_data\":{"]},"mm_placeholders":{"image":[{"offset":2,"length":3}]},"kwargs_data":{"image":["AAAA"]}}"#,
        );
        let mut at = answer.as_bytes().windows(TENSORS.len());
        let at = at.position(|part| part == TENSORS).expect("tensors");
        let cut = read_cut(&answer.as_bytes()[..at]);
        assert!(cut.is_some());
        assert_eq!(cut, read(answer.as_bytes()));
        assert_eq!(read(&answer.as_bytes()[..at]), None);
        assert_eq!(read_cut(answer.as_bytes()), None);
    }

    #[test]
    fn an_answer_of_another_form_is_none() {
        for features in [
            "null",
            "{}",
            r#"{"mm_hashes":{},"mm_placeholders":{}}"#,
            r#"{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[]}}"#,
            r#"{"mm_hashes":{"image":[7]},"mm_placeholders":{"image":[{"offset":0,"length":1}]}}"#,
            r#"{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":0,"length":0}]}}"#,
            r#"{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":7,"length":2}]}}"#,
            r#"{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":4294967295,"length":4294967295}]}}"#,
            r#"{"mm_hashes":{"image":["a","b"]},"mm_placeholders":{"image":[{"offset":0,"length":2},{"offset":1,"length":1}]}}"#,
        ] {
            assert_eq!(read(answer(features).as_bytes()), None, "{features}");
        }
        assert_eq!(read(b""), None);
        assert_eq!(read(b"[]"), None);
        let whole = answer(
            r#"{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":0,"length":1}]}}"#,
        );
        assert!(read(whole.as_bytes()).is_some());
        for end in 0..whole.len() {
            assert_eq!(read(&whole.as_bytes()[..end]), None, "{end}");
        }
    }

    #[test]
    fn the_number_of_items_is_bounded() {
        let with = |count: usize| {
            let places: Vec<_> = (0..count)
                .map(|offset| serde_json::json!({"offset": offset, "length": 1}))
                .collect();
            let features = serde_json::json!({
                "mm_hashes": {"image": vec!["a"; count]}, "mm_placeholders": {"image": places},
            });
            let answer = serde_json::json!({
                "token_ids": vec![7; count], "features": features, "sampling_params": {},
            });
            read(answer.to_string().as_bytes())
        };
        assert!(with(MOST_ITEMS).is_some());
        assert_eq!(with(MOST_ITEMS + 1), None);
    }
}
