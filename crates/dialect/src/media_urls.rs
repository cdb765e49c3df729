//! The URLs of pictures, sound, video and files in a body, which engines fetch.
//!
//! One pass over the text, without a tree and without recursion, and only over a body that may have
//! such a member. A text that is no JSON may yield anything: a later stage refuses it.

use std::borrow::Cow;

use memchr::{memchr_iter, memchr2, memmem};

use crate::json::{self, MAX_DEPTH};

/// Members that name what an engine fetches: a text, an object with the member `url`, or a list of
/// these. Of chats and messages, of the responses API, and of SGLang's routes. Their names count
/// without case, as servers in Go read them.
const OWNERS: [&str; 11] = [
    "image_url",
    "video_url",
    "audio_url",
    "file_url",
    "image_data",
    "video_data",
    "audio_data",
    "image",
    "video",
    "audio",
    "input_audio",
];
/// The member of a block of messages whose member `url` does the same; it has other forms too.
const SOURCE: &str = "source";
const URL: &str = "url";
/// The ends of all of these names.
const NAME_ENDS: [&[u8]; 5] = [b"url", b"_data", b"image", b"video", b"audio"];

/// Members of the body that no engine reads for media.
const NOT_READ: [&str; 3] = ["metadata", "tools", "response_format"];
/// Members below those, with the arguments of a tool call: any JSON.
const ARGUMENTS: [&str; 2] = ["input", "arguments"];

/// A member that names what an engine fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaUrl<'a> {
    /// The name of the member.
    pub field: &'static str,
    /// Its text, with quotes and escapes.
    quoted: &'a str,
}

impl<'a> MediaUrl<'a> {
    /// Returns the text.
    pub fn text(&self) -> Cow<'a, str> {
        json::decode(self.quoted)
    }

    /// Returns whether it begins as a `data:` URL does in its usual spelling. Its text, which may be
    /// the larger part of the body, is not decoded for that.
    pub fn is_plain_data(&self) -> bool {
        self.quoted.starts_with("\"data:")
    }
}

/// Finds the members of a body that name what an engine fetches.
///
/// ```
/// let body = br#"{"messages": [{"content": [{"image_url": {"url": "http://a/b"}}]}]}"#;
/// let url = dialect::media_urls(body).next().unwrap();
/// assert_eq!((url.field, &*url.text()), ("image_url", "http://a/b"));
/// ```
pub fn media_urls(body: &[u8]) -> impl Iterator<Item = MediaUrl<'_>> {
    let text = if may_have_media(body) {
        json::utf8(body).unwrap_or_default()
    } else {
        ""
    };
    MediaScan {
        text,
        at: 0,
        open: Vec::new(),
        key: None,
    }
}

/// Returns whether a body may have such a member: most have none, and are not scanned.
fn may_have_media(body: &[u8]) -> bool {
    let ends_name = |at: usize| {
        NAME_ENDS.into_iter().any(|end| {
            let from = at.checked_sub(end.len());
            from.is_some_and(|from| body[from..at].eq_ignore_ascii_case(end))
        })
    };
    // An escape can write a name otherwise.
    memchr_iter(b'"', body).any(ends_name) || memmem::find(body, b"\\u").is_some()
}

/// Returns which of these names a key is.
fn named(names: impl IntoIterator<Item = &'static str>, key: &str) -> Option<&'static str> {
    let mut names = names.into_iter();
    names.find(|name| key.eq_ignore_ascii_case(name))
}

/// An open object or list.
#[derive(Clone, Copy)]
struct OpenContainer {
    is_object: bool,
    /// The member that it is the value of, or is in the list of, if that is one of [`OWNERS`] or
    /// [`SOURCE`].
    owner: Option<&'static str>,
    /// Nothing in it is read for media.
    is_skipped: bool,
}

struct MediaScan<'a> {
    text: &'a str,
    at: usize,
    open: Vec<OpenContainer>,
    /// The key whose value comes next.
    key: Option<&'a str>,
}

impl<'a> MediaScan<'a> {
    /// Returns the next string, with its quotes; it begins at the present place.
    fn string(&mut self) -> Option<&'a str> {
        let (bytes, begin) = (self.text.as_bytes(), self.at);
        let mut at = begin + 1;
        loop {
            at += memchr2(b'"', b'\\', bytes.get(at..)?)?;
            if bytes[at] == b'"' {
                self.at = at + 1;
                return self.text.get(begin..self.at);
            }
            at += 2;
        }
    }

    /// Takes a string: a key, or a value, which may be a URL.
    fn take_string(&mut self) -> Option<Option<MediaUrl<'a>>> {
        let quoted = self.string()?;
        let Some(inner) = self.open.last().copied() else {
            return Some(None);
        };
        if inner.is_object && self.key.is_none() {
            self.key = Some(quoted);
            return Some(None);
        }
        let field = match self.key.take() {
            _ if inner.is_skipped => None,
            None => inner.owner.filter(|owner| *owner != SOURCE),
            Some(key) => match json::decode(key) {
                key if key.eq_ignore_ascii_case(URL) => inner.owner,
                key => named(OWNERS, &key),
            },
        };
        Some(field.map(|field| MediaUrl { field, quoted }))
    }

    /// Enters an object or a list.
    fn enter(&mut self, is_object: bool) {
        let container = match (self.open.last(), self.key.take()) {
            (Some(outer), Some(key)) => {
                let key = json::decode(key);
                let not_read = if self.open.len() == 1 {
                    &NOT_READ[..]
                } else {
                    &ARGUMENTS[..]
                };
                OpenContainer {
                    is_object,
                    owner: named(OWNERS.into_iter().chain([SOURCE]), &key),
                    is_skipped: outer.is_skipped || not_read.iter().any(|name| *name == key),
                }
            }
            (Some(list), None) => OpenContainer { is_object, ..*list },
            (None, _) => OpenContainer {
                is_object,
                owner: None,
                is_skipped: false,
            },
        };
        self.open.push(container);
    }
}

impl<'a> Iterator for MediaScan<'a> {
    type Item = MediaUrl<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.text.as_bytes().get(self.at..)?;
            let is_structure = |byte: &u8| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']' | b',');
            self.at += rest.iter().position(is_structure)?;
            match self.text.as_bytes()[self.at] {
                b'"' => {
                    if let Some(url) = self.take_string()? {
                        return Some(url);
                    }
                    continue;
                }
                byte @ (b'{' | b'[') => {
                    // Deeper bodies are refused.
                    if self.open.len() >= MAX_DEPTH as usize {
                        return None;
                    }
                    self.enter(byte == b'{');
                }
                b',' => self.key = None,
                _ => {
                    self.open.pop();
                    self.key = None;
                }
            }
            self.at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use contract_id::contract;
    use proptest::prelude::*;

    use super::*;

    fn found(body: &str) -> Vec<(&'static str, String)> {
        media_urls(body.as_bytes())
            .map(|url| (url.field, url.text().into_owned()))
            .collect()
    }

    #[test]
    #[contract("S43")]
    fn every_member_that_an_engine_fetches_is_found_in_the_body_of_each_api() {
        for (body, field) in [
            (
                r#"{"messages":[{"content":[{"type":"image_url","image_url":{"detail":"low","url":"U"}}]}]}"#,
                "image_url",
            ),
            (
                r#"{"messages":[{"content":[{"image_url":"U"}]}]}"#,
                "image_url",
            ),
            (
                r#"{"messages":[{"content":[{"video_url":{"url":"U"}}]}]}"#,
                "video_url",
            ),
            (
                r#"{"messages":[{"content":[{"audio_url":{"url":"U"}}]}]}"#,
                "audio_url",
            ),
            (
                r#"{"messages":[{"content":[{"input_audio":{"url":"U"}}]}]}"#,
                "input_audio",
            ),
            (
                r#"{"messages":[[{"content":[{"image_url":{"url":"U"}}]}]]}"#,
                "image_url",
            ),
            (
                r#"{"messages":[{"content":[{"type":"image","source":{"type":"url","url":"U"}}]}]}"#,
                "source",
            ),
            (
                r#"{"messages":[{"content":[{"type":"tool_result","content":[{"source":{"url":"U"}}]}]}]}"#,
                "source",
            ),
            (
                r#"{"input":[{"content":[{"type":"input_image","image_url":"U"}]}]}"#,
                "image_url",
            ),
            (
                r#"{"input":[{"content":[{"type":"input_file","file_url":"U"}]}]}"#,
                "file_url",
            ),
            (r#"{"input":[{"text":"a","image":"U"}]}"#, "image"),
            (r#"{"documents":[{"video":"U"}]}"#, "video"),
            (r#"{"image":["U"],"prompt":"a"}"#, "image"),
            (r#"{"text":"a","image_data":"U"}"#, "image_data"),
            (r#"{"text":"a","image_data":[["U"]]}"#, "image_data"),
            (r#"{"text":"a","video_data":[{"url":"U"}]}"#, "video_data"),
            (r#"{"text":"a","audio_data":["U"]}"#, "audio_data"),
            // In any spelling, and behind anything.
            (r#"{"im\u0061ge_url":"\u0055"}"#, "image_url"),
            (r#"{"image_url":{"\u0075rl":"U"}}"#, "image_url"),
            (r#"{"Image_URL":{"Url":"U"}}"#, "image_url"),
            (r#"{"SOURCE":{"URL":"U"}}"#, "source"),
            (
                r#"{"a":"x\"{[\\","b":{"c":[1,"d"]},"image_url" : { "url" :"U" } }"#,
                "image_url",
            ),
        ] {
            assert_eq!(found(body), [(field, "U".to_owned())], "{body}");
        }
    }

    #[test]
    fn all_urls_of_a_body_are_found_also_those_of_one_key_twice() {
        let body =
            r#"{"image_data":["a",{"url":"b"}],"image_url":"c","image_url":{"url":"d","url":"e"}}"#;
        let texts: Vec<String> = found(body).into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["a", "b", "c", "d", "e"]);
    }

    #[test]
    fn what_no_engine_fetches_is_not_found() {
        for body in [
            r#"{"messages":[{"content":"see image_url: http://a"}]}"#,
            r#"{"messages":[{"content":[{"type":"image_url"},{"url":"U"}]}]}"#,
            r#"{"messages":[{"content":[{"type":"image","source":{"type":"base64","data":"U"}}]}]}"#,
            r#"{"messages":[{"content":[{"type":"tool_use","input":{"image_url":"U","a":[{"image":"U"}]}}]}]}"#,
            r#"{"tools":[{"parameters":{"properties":{"image_url":{"type":"string","url":"U"}}}}]}"#,
            r#"{"metadata":{"image_url":"U"},"response_format":{"image":"U"}}"#,
            r#"{"audio":{"voice":"alloy"},"source":"U","image_url":null}"#,
            r#"{"image_url":[7,true,{"detail":"U"}]}"#,
            "",
            "{",
            r#"{"image_url":"U"#,
            r#""image_url""#,
            "\u{e4}url]}],\"",
        ] {
            assert!(found(body).is_empty(), "{body}");
        }
        let deep = format!("{}\"image_url\":\"U\"", r#"{"a":"#.repeat(10_000));
        assert!(found(&deep).is_empty());
    }

    #[test]
    fn a_body_without_a_name_of_media_is_not_scanned() {
        let chat = br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;
        assert!(!may_have_media(chat));
        for owner in OWNERS {
            let body = format!(r#"{{"{owner}":"U"}}"#);
            assert!(may_have_media(body.as_bytes()), "{owner}");
            assert!(may_have_media(body.to_uppercase().as_bytes()), "{owner}");
        }
        assert!(may_have_media(br#"{"source":{"url":"U"}}"#));
        assert!(may_have_media(br#"{"im\u0061ge":"U"}"#));
    }

    #[test]
    fn data_in_its_usual_spelling_is_known_without_its_text() {
        let is_data = |body: &str| media_urls(body.as_bytes()).all(|url| url.is_plain_data());
        assert!(is_data(r#"{"image_url":"data:image/png;base64,AA=="}"#));
        assert!(!is_data(r#"{"image_url":"DATA:image/png;base64,AA=="}"#));
        assert!(!is_data(r#"{"image_url":"http://data:80/"}"#));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_scan_panic(text in r#"[\PC"\\{}\[\],:u]{0,80}"#) {
            let body = format!("{text}\"image_url\":{{\"url\":{text}");
            prop_assert!(found(&body).len() <= body.len());
        }
    }
}
