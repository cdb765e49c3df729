//! Decides from a request's body whether a cached reply can answer it.
//!
//! One walk over the body yields the cache key of its replies, the form of the reply, and whether
//! the client asks for a repeatable answer. The caller decides whether to use a cached reply.
//!
//! **Invariant**: changing any member of a body that is not in the list below gives another key.

use std::borrow::Cow;

use crate::{
    json::{self, RawJson},
    request_key::{KeyDigest, RequestKey},
};

/// Members of a body that never change the model's output (contract A6).
const IGNORED: [&str; 6] = [
    "stream",
    "stream_options",
    "user",
    "metadata",
    "request_id",
    "rid",
];

/// Members of `stream_options` that a replayed stream can honour.
const HONOURED: [&str; 2] = ["include_usage", "include_obfuscation"];

/// The `temperature` of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Temperature {
    /// Absent, or `null`.
    #[default]
    Absent,
    /// The number 0.
    Zero,
    /// Anything else, and duplicates, which engines could read in two ways.
    Other,
}

/// The members of a body that matter for cached replies.
#[derive(Clone, Debug)]
pub struct RepeatabilityView<'a> {
    /// The members, sorted by name; duplicates stay in their order.
    members: Vec<(Cow<'a, str>, RawJson<'a>)>,
    bytes: usize,
}

impl<'a> RepeatabilityView<'a> {
    /// Reads a body; `None` if it is not one JSON object whose names can be told apart.
    ///
    /// ```
    /// use dialect::RepeatabilityView;
    ///
    /// let key = |body: &str| RepeatabilityView::read(body.as_bytes()).unwrap().key("default", "/v1/completions", &[]);
    /// assert_eq!(key(r#"{"model":"m","seed":1}"#), key(r#"{ "seed" : 1, "model" : "m", "user": "me" }"#));
    /// assert_ne!(key(r#"{"model":"m","seed":1}"#), key(r#"{"model":"m","seed":2}"#));
    /// ```
    pub fn read(body: &'a [u8]) -> Option<Self> {
        let text = json::utf8(body).ok()?;
        let mut members = Vec::new();
        for member in json::members(text) {
            let (key, value) = member.ok()?;
            let name = json::decode(key);
            // Different halves of surrogate pairs read alike.
            if name.contains(char::REPLACEMENT_CHARACTER) {
                return None;
            }
            members.push((name, value));
        }
        members.sort_by(|(one, _), (other, _)| one.cmp(other));
        Some(Self {
            members,
            bytes: body.len(),
        })
    }

    /// Returns the requested model.
    pub fn model(&self) -> Option<Cow<'a, str>> {
        self.members
            .iter()
            .find(|(name, _)| name == "model")
            .and_then(|(_, value)| value.string())
    }

    /// Returns the cache key of the request. `tenant`: its owner, as no tenant gets another's
    /// reply; `route`: the path, which implies the dialect; `headers`: the headers that change the
    /// reply, always in one order.
    pub fn key(&self, tenant: &str, route: &str, headers: &[(&str, &[u8])]) -> RequestKey {
        let mut parts = KeyDigest::with_capacity(self.bytes + 1024);
        // The version of the key format: a new format never matches an old key.
        parts.bytes(b"warmroute.request/1");
        parts.bytes(tenant.as_bytes());
        parts.bytes(route.as_bytes());
        parts.count(headers.len());
        for (name, value) in headers {
            parts.bytes(name.as_bytes());
            parts.bytes(value);
        }
        for (name, value) in self
            .members
            .iter()
            .filter(|(name, _)| !IGNORED.contains(&&**name))
        {
            parts.bytes(name.as_bytes());
            parts.json(value.as_str());
        }
        parts.key()
    }

    /// Returns the form of the requested reply in few bytes: requests with one key and one form get
    /// equal bytes.
    ///
    /// ```
    /// let form = |body: &[u8]| dialect::RepeatabilityView::read(body).unwrap().form();
    /// assert_eq!(form(br#"{"seed":1,"stream":true}"#), form(br#"{"stream": true}"#));
    /// assert_ne!(form(br#"{"stream":true}"#), form(b"{}"));
    /// ```
    pub fn form(&self) -> RequestKey {
        let mut parts = KeyDigest::with_capacity(128);
        for (name, value) in self
            .members
            .iter()
            .filter(|(name, _)| matches!(&**name, "stream" | "stream_options"))
        {
            parts.bytes(name.as_bytes());
            parts.json(value.as_str());
        }
        parts.key()
    }

    /// Returns whether the request itself asks for a repeatable answer (contract B6): `temperature`
    /// 0, or a `seed`.
    ///
    /// ```
    /// let asks = |body: &[u8]| dialect::RepeatabilityView::read(body).unwrap().asks_repeatable();
    /// assert!(asks(br#"{"temperature": 0.0}"#));
    /// assert!(asks(br#"{"seed": 7, "temperature": 1}"#));
    /// assert!(!asks(br#"{"model": "m"}"#));
    /// ```
    pub fn asks_repeatable(&self) -> bool {
        let mut seeds = self.named("seed");
        let seeded = seeds
            .next()
            .is_some_and(|seed| seed.as_str().parse::<i64>().is_ok())
            && seeds.next().is_none();
        seeded || self.temperature() == Temperature::Zero
    }

    /// Returns the `temperature` of the body.
    pub fn temperature(&self) -> Temperature {
        let mut values = self.named("temperature");
        match (values.next(), values.next()) {
            (None, _) => Temperature::Absent,
            (Some(value), None) if value.is_null() => Temperature::Absent,
            (Some(value), None) if value.as_str().parse::<f64>() == Ok(0.0) => Temperature::Zero,
            _ => Temperature::Other,
        }
    }

    /// Returns whether the client wants an event stream.
    pub fn stream(&self) -> bool {
        self.named("stream")
            .last()
            .and_then(RawJson::flag)
            .unwrap_or(false)
    }

    /// Returns whether the stream ends with the usage (`stream_options.include_usage`).
    pub fn include_usage(&self) -> bool {
        let options = self.named("stream_options").last();
        options
            .and_then(|options| options.member("include_usage"))
            .and_then(RawJson::flag)
            .unwrap_or(false)
    }

    /// Returns whether the client wants a stream option that a replayed stream cannot honour.
    pub fn other_stream_options(&self) -> bool {
        let other = |options: RawJson<'_>| {
            options
                .members()
                .is_none_or(|mut all| all.any(|(name, _)| !HONOURED.contains(&&*name)))
        };
        self.named("stream_options")
            .any(|options| !options.is_null() && other(options))
    }

    /// Returns the values of that name, in their order.
    fn named(&self, name: &'static str) -> impl Iterator<Item = RawJson<'a>> {
        let from = self.members.partition_point(|(own, _)| &**own < name);
        self.members[from..]
            .iter()
            .take_while(move |(own, _)| own == name)
            .map(|(_, value)| *value)
    }
}
