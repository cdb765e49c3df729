//! What a request's body says about being answered with the reply to another one.
//!
//! One walk over the body answers all of it: the key under which its replies are found, the form in which it wants its own,
//! and whether it asks for a repeatable answer. Whether it gets another's reply is the caller's to decide.
//!
//! **Invariant**: changing any member of a body that is not in the list below gives another key.

use std::borrow::Cow;

use crate::{
    json::{self, RawJson},
    request_key::{KeyDigest, RequestKey},
};

/// Members of a body that never change what the model says (contract A6).
const IGNORED: [&str; 6] = [
    "stream",
    "stream_options",
    "user",
    "metadata",
    "request_id",
    "rid",
];

/// Members of `stream_options` that a stream made of a finished reply can honour.
const HONOURED: [&str; 2] = ["include_usage", "include_obfuscation"];

/// What a body says of `temperature`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Temperature {
    /// Nothing, or `null`.
    #[default]
    Absent,
    /// That it is 0.
    Zero,
    /// Anything else, and what engines could read in two ways: it is there twice.
    Other,
}

/// A body, as far as it matters to whether another's reply answers it.
#[derive(Clone, Debug)]
pub struct RepeatabilityView<'a> {
    /// Its members by name; those of one name stay in their order.
    members: Vec<(Cow<'a, str>, RawJson<'a>)>,
    bytes: usize,
}

impl<'a> RepeatabilityView<'a> {
    /// Reads a body; `None` if it is not one JSON object whose names can be told apart.
    ///
    /// ```
    /// use dialect::Repeated;
    ///
    /// let key = |body: &str| Repeated::read(body.as_bytes()).unwrap().key("default", "/v1/completions", &[]);
    /// assert_eq!(key(r#"{"model":"m","seed":1}"#), key(r#"{ "seed" : 1, "model" : "m", "user": "me" }"#));
    /// assert_ne!(key(r#"{"model":"m","seed":1}"#), key(r#"{"model":"m","seed":2}"#));
    /// ```
    pub fn read(body: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(body).ok()?;
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

    /// The model that it names.
    pub fn model(&self) -> Option<Cow<'a, str>> {
        self.members
            .iter()
            .find(|(name, _)| name == "model")
            .and_then(|(_, value)| value.string())
    }

    /// The key of the request. `tenant`: whose it is, as nobody gets another's reply; `route`: the path, which says the
    /// dialect too; `headers`: those that change the reply, in an order that is always the same.
    pub fn key(&self, tenant: &str, route: &str, headers: &[(&str, &[u8])]) -> RequestKey {
        let mut parts = KeyDigest::with_capacity(self.bytes + 1024);
        // The form's own version: another form never meets an old key.
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

    /// How the request wants its reply, in few bytes: those with one key and one form get the same bytes.
    ///
    /// ```
    /// let form = |body: &[u8]| dialect::Repeated::read(body).unwrap().form();
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

    /// Whether the request itself asks for a repeatable answer (contract B6): `temperature` 0, or a `seed`.
    ///
    /// ```
    /// let asks = |body: &[u8]| dialect::Repeated::read(body).unwrap().asks_repeatable();
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

    /// What it says of `temperature`.
    pub fn temperature(&self) -> Temperature {
        let mut values = self.named("temperature");
        match (values.next(), values.next()) {
            (None, _) => Temperature::Absent,
            (Some(value), None) if value.is_null() => Temperature::Absent,
            (Some(value), None) if value.as_str().parse::<f64>() == Ok(0.0) => Temperature::Zero,
            _ => Temperature::Other,
        }
    }

    /// Whether an event stream is wanted.
    pub fn stream(&self) -> bool {
        self.named("stream")
            .last()
            .and_then(RawJson::flag)
            .unwrap_or(false)
    }

    /// Whether the stream shall end with the usage (`stream_options.include_usage`).
    pub fn include_usage(&self) -> bool {
        let options = self.named("stream_options").last();
        options
            .and_then(|options| options.member("include_usage"))
            .and_then(RawJson::flag)
            .unwrap_or(false)
    }

    /// Whether it wants something of its stream that a stream made of a finished reply cannot honour.
    pub fn other_stream_options(&self) -> bool {
        let other = |options: RawJson<'_>| {
            options
                .members()
                .is_none_or(|mut all| all.any(|(name, _)| !HONOURED.contains(&&*name)))
        };
        self.named("stream_options")
            .any(|options| !options.is_null() && other(options))
    }

    /// The values of that name, in their order.
    fn named(&self, name: &'static str) -> impl Iterator<Item = RawJson<'a>> {
        let from = self.members.partition_point(|(own, _)| &**own < name);
        self.members[from..]
            .iter()
            .take_while(move |(own, _)| own == name)
            .map(|(_, value)| *value)
    }
}
