//! Images, audio and videos in prompts.
//!
//! Nothing is decoded or fetched: a URL or its data stands for the content of an item, and the
//! number of its tokens is a function of it.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use kv_blocks::{MediaItem, PromptMedia};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{SimApiError, request};

/// A prompt's token ids, and the media items of the placeholders among them.
#[derive(Clone, Debug)]
pub(crate) struct SimPrompt {
    pub(crate) ids: Arc<[u32]>,
    pub(crate) media: PromptMedia,
    /// The modality of each item; empty where the client gave the token ids.
    pub(crate) modalities: Vec<&'static str>,
}

impl SimPrompt {
    /// A prompt of text only.
    pub(crate) fn of_text(ids: impl Into<Arc<[u32]>>) -> Self {
        Self {
            ids: ids.into(),
            media: PromptMedia::default(),
            modalities: Vec::new(),
        }
    }

    pub(crate) fn token_count(&self) -> u32 {
        u32::try_from(self.ids.len()).unwrap_or(u32::MAX)
    }
}

/// An item as a chat has it.
#[derive(Debug)]
struct ChatItem {
    modality: &'static str,
    identifier: Arc<str>,
    tokens: u32,
}

/// A chat without its items.
#[derive(Debug)]
pub(crate) struct ChatWithoutMedia<'a> {
    /// The messages, with a mark in the place of each item.
    pub(crate) messages: Cow<'a, str>,
    items: Vec<ChatItem>,
}

/// Stands for an item in the text of a chat. Private-use letters, so that no template and no client
/// writes it.
const MARK: &str = "\u{f8fe}item\u{f8fe}";
/// What the types of content parts with media contain.
const TYPES: [&str; 2] = ["_url", "input_audio"];
/// The token of every placeholder.
const PLACEHOLDER: u32 = 0;
/// Fewest tokens of an item, and how many more it may have.
const MIN_TOKENS: u32 = 16;
const EXTRA_TOKENS: u64 = 48;

impl<'a> ChatWithoutMedia<'a> {
    /// Takes the items out of a chat's messages.
    pub(crate) fn of(messages: &'a str) -> Result<Self, SimApiError> {
        let mut chat = Self {
            messages: messages.into(),
            items: Vec::new(),
        };
        if !TYPES.iter().any(|name| messages.contains(name)) {
            return Ok(chat);
        }
        let mut all: Value = request::parse(messages.as_bytes())?;
        let contents = all.as_array_mut().into_iter().flatten();
        let parts = contents
            .filter_map(|message| message.get_mut("content")?.as_array_mut())
            .flatten();
        for part in parts {
            if let Some(item) = item(part) {
                chat.items.push(item);
                *part = json!({"type": "text", "text": MARK});
            }
        }
        if !chat.items.is_empty() {
            chat.messages = all.to_string().into();
        }
        Ok(chat)
    }

    /// Returns the prompt of the rendered text. `ids` tokenizes a piece of it, and gets whether it
    /// is the first one.
    pub(crate) fn prompt(
        self,
        text: &str,
        ids: impl Fn(&str, bool) -> Result<Vec<u32>, SimApiError>,
    ) -> Result<SimPrompt, SimApiError> {
        let pieces: Vec<&str> = text.split(MARK).collect();
        let refused = || SimApiError::bad_request("messages: a part has no place.", "messages");
        if pieces.len() != self.items.len() + 1 {
            return Err(refused());
        }
        let (mut tokens, mut media, mut modalities) = (Vec::new(), Vec::new(), Vec::new());
        let mut items = self.items.into_iter();
        for (index, piece) in pieces.into_iter().enumerate() {
            tokens.extend(ids(piece, index == 0)?);
            let Some(item) = items.next() else {
                break;
            };
            media.push(MediaItem {
                identifier: item.identifier,
                offset: u32::try_from(tokens.len()).unwrap_or(u32::MAX),
                length: item.tokens,
            });
            modalities.push(item.modality);
            tokens.extend(std::iter::repeat_n(PLACEHOLDER, item.tokens as usize));
        }
        Ok(SimPrompt {
            ids: tokens.into(),
            media: PromptMedia::new(media).ok_or_else(refused)?,
            modalities,
        })
    }
}

/// Returns the item of a content part; `None` for a part of another type.
fn item(part: &Value) -> Option<ChatItem> {
    let (modality, content) = match part["type"].as_str()? {
        "image_url" => ("image", url(&part["image_url"])?),
        "video_url" => ("video", url(&part["video_url"])?),
        "audio_url" => ("audio", url(&part["audio_url"])?),
        "input_audio" => ("audio", part["input_audio"]["data"].as_str()?),
        _ => return None,
    };
    let digest = |seed: u64| {
        // Equal in every process: no part of it is random.
        let mut hasher = DefaultHasher::new();
        (seed, modality, content).hash(&mut hasher);
        hasher.finish()
    };
    let [a, b, c, d] = [0, 1, 2, 3].map(digest);
    let identifier = format!("{a:016x}{b:016x}{c:016x}{d:016x}");
    let more = u32::try_from(a % EXTRA_TOKENS).unwrap_or_default();
    Some(ChatItem {
        modality,
        // A client may name an item.
        identifier: part["uuid"].as_str().unwrap_or(&identifier).into(),
        tokens: MIN_TOKENS + more,
    })
}

/// Returns the URL of a part: a text, or an object with one.
fn url(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["url"].as_str())
}

/// The items of a prompt of token ids, as `/render` returns them and `/generate` takes them.
#[derive(Debug, Deserialize)]
pub(crate) struct Features {
    mm_hashes: BTreeMap<String, Vec<String>>,
    mm_placeholders: BTreeMap<String, Vec<Placeholder>>,
}

#[derive(Debug, Deserialize)]
struct Placeholder {
    offset: u32,
    length: u32,
}

impl Features {
    /// Returns the items, checked as vLLM checks them.
    pub(crate) fn media(self, tokens: usize) -> Result<PromptMedia, SimApiError> {
        let refused = |message: &str| SimApiError::bad_request(message, "features");
        if lengths(&self.mm_hashes) != lengths(&self.mm_placeholders) {
            return Err(refused(
                "mm_hashes and mm_placeholders must have the same modalities and lengths",
            ));
        }
        let places = self.mm_placeholders.into_values().flatten();
        let names = self.mm_hashes.into_values().flatten();
        let items: Vec<MediaItem> = names
            .zip(places)
            .map(|(name, place)| MediaItem {
                identifier: name.into(),
                offset: place.offset,
                length: place.length,
            })
            .collect();
        let is_inside =
            |item: &MediaItem| u64::from(item.offset) + u64::from(item.length) <= tokens as u64;
        if !items.iter().all(is_inside) {
            return Err(refused(
                "mm_placeholders must remain within the token_ids sequence",
            ));
        }
        PromptMedia::new(items).ok_or_else(|| refused("mm_placeholders must not overlap"))
    }
}

fn lengths<T>(lists: &BTreeMap<String, Vec<T>>) -> Vec<(&String, usize)> {
    lists
        .iter()
        .map(|(name, list)| (name, list.len()))
        .collect()
}
