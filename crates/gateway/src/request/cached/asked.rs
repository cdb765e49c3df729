//! What a request says about being answered from another's reply.

use std::sync::Arc;

use bytes::Bytes;
use config::AbsentTemperature;
use dialect::{Dialect, LastQuestion, Repeated, RequestKey, Temperature};
use http::{HeaderMap, header};
use sha2::{Digest, Sha256};

use super::Reason;
use crate::{
    Gateway, alike,
    request::accept::{Call, Overrides},
};

/// Headers that change what engines answer.
const RELEVANT: [&str; 4] = [
    "anthropic-beta",
    "anthropic-version",
    "openai-beta",
    "x-cache-salt",
];
/// Headers that say who asks, as engines and clients have them.
const CREDENTIALS: [&str; 5] = [
    "authorization",
    "x-api-key",
    "api-key",
    "x-router-key",
    "cookie",
];
/// The digest of a longer body would hold up others on this thread.
const LONG_BODY: usize = 64 * 1024;

/// Read once, before anything is looked up.
#[derive(Debug)]
pub(super) struct Asked {
    /// `Err`: why no kept reply may answer; `None`: of this route none ever does.
    pub(super) standing: Option<Result<(), Reason>>,
    pub(super) dialect: Dialect,
    /// Looks nothing up, and keeps what comes.
    pub(super) fresh: bool,
    /// What is asked for; `None` where nobody needs to know.
    pub(super) said: Option<Said>,
    own_way: bool,
}

/// What the body says.
#[derive(Clone, Debug)]
pub(super) struct Said {
    /// What it shares with those that are alike; `None` where nothing may answer it but a worker.
    pub(super) same: Option<Same>,
    pub(super) model: Arc<str>,
    asks_repeatable: bool,
    temperature: Temperature,
    pub(super) answer: Form,
}

/// The digests of a request: what is asked for, and how it is to be told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Same {
    pub(super) key: RequestKey,
    form: RequestKey,
}

/// How the reply is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Whole,
    Stream {
        /// Whether its usage is to be told.
        usage: bool,
    },
    /// A stream with more in it than a replay could have.
    OtherStream,
}

impl Asked {
    pub(super) async fn of(gateway: &Gateway, call: &Call, dialect: Dialect) -> Self {
        let settings = gateway.cache.settings();
        let is_kept = matches!(
            dialect,
            Dialect::Chat | Dialect::Completions | Dialect::Messages
        );
        let store = of_cache(&call.headers);
        // What an engine keeps of a response is for one client to go on from.
        let may_be_shared = dialect != Dialect::Responses
            && gateway.rules.deduplication.is_some()
            && store == Store::Usual;
        let needed = if is_kept && settings.enabled {
            store != Store::Nothing
        } else {
            may_be_shared && mentions(call.body.bytes())
        };
        let said = if needed { said(call).await } else { None };
        let own_way = call.overrides != Overrides::default();
        let standing = is_kept.then(|| {
            if !settings.enabled {
                return Err(Reason::Off);
            }
            if store == Store::Nothing {
                return Err(Reason::NoStore);
            }
            // The worker that was named is to answer.
            if call.overrides.worker.is_some() {
                return Err(Reason::Pinned);
            }
            let said = said.as_ref().ok_or(Reason::Unreadable)?;
            match said.temperature {
                Temperature::Other => return Err(Reason::Temperature),
                Temperature::Absent if settings.absent_temperature == AbsentTemperature::Bypass => {
                    return Err(Reason::AbsentTemperature);
                }
                Temperature::Absent | Temperature::Zero => {}
            }
            match said.answer {
                // Streams of messages are not kept.
                Form::Stream { .. } if dialect == Dialect::Messages => Err(Reason::Stream),
                Form::OtherStream => Err(Reason::Stream),
                Form::Whole | Form::Stream { .. } => Ok(()),
            }
        });
        Self {
            standing,
            dialect,
            fresh: store == Store::Fresh,
            said,
            own_way,
        }
    }

    /// What is asked last, and the rest.
    pub(super) fn last_question(&self, call: &Call) -> Option<LastQuestion> {
        // Its digest would hold up others on this thread.
        if call.body.bytes().len() > LONG_BODY {
            return None;
        }
        let (tenant, headers) = (tenant(&call.headers), relevant(&call.headers));
        let headers: Vec<(&str, &[u8])> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_slice()))
            .collect();
        dialect::last_question(
            self.dialect,
            call.body.bytes(),
            &tenant,
            call.target.as_str(),
            &headers,
        )
    }

    /// The key of those that are alike; `None` for a request that is to be sent by itself. `kept`: whether the reply will be.
    pub(super) fn alike(&self, gateway: &Gateway, kept: bool) -> Option<alike::Key> {
        let said = self.said.as_ref()?;
        let by_itself = self.own_way || self.fresh || self.dialect == Dialect::Responses;
        let asks = gateway.rules.deduplication.is_some() && said.asks_repeatable;
        let same = said.same.filter(|_| !by_itself && (asks || kept))?;
        Some((same.key, same.form, gateway.cache.generation()))
    }
}

/// What `Cache-Control` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Usual,
    /// A new reply, which may be kept.
    Fresh,
    /// Neither.
    Nothing,
}

fn of_cache(headers: &HeaderMap) -> Store {
    let mut store = Store::Usual;
    for value in headers.get_all(header::CACHE_CONTROL) {
        for directive in value
            .as_bytes()
            .split(|byte| *byte == b',')
            .map(<[u8]>::trim_ascii)
        {
            match directive.to_ascii_lowercase().as_slice() {
                b"no-store" => return Store::Nothing,
                b"no-cache" | b"max-age=0" => store = Store::Fresh,
                _ => {}
            }
        }
    }
    store
}

/// Whether a body may ask for a repeatable answer: most do not, and are not walked for it.
fn mentions(body: &[u8]) -> bool {
    std::str::from_utf8(body)
        .is_ok_and(|body| body.contains("\"temperature\"") || body.contains("\"seed\""))
}

async fn said(call: &Call) -> Option<Said> {
    let body = call.body.bytes();
    let (route, headers) = (call.target.as_str(), relevant(&call.headers));
    let tenant = tenant(&call.headers);
    if body.len() <= LONG_BODY {
        return Said::read(body, &tenant, route, &headers);
    }
    let (body, route) = (body.clone(), route.to_owned());
    tokio::task::spawn_blocking(move || Said::read(&body, &tenant, &route, &headers))
        .await
        .ok()
        .flatten()
}

impl Said {
    fn read(
        body: &Bytes,
        tenant: &str,
        route: &str,
        headers: &[(&'static str, Vec<u8>)],
    ) -> Option<Self> {
        let repeated = Repeated::read(body)?;
        let headers: Vec<(&str, &[u8])> = headers
            .iter()
            .map(|(name, value)| (*name, value.as_slice()))
            .collect();
        let (temperature, asks_repeatable) = (repeated.temperature(), repeated.asks_repeatable());
        // Most are neither kept nor joined, and their bodies may be long.
        let may_be_same = asks_repeatable || temperature != Temperature::Other;
        let digests = || Same {
            key: repeated.key(tenant, route, &headers),
            form: repeated.form(),
        };
        Some(Self {
            same: may_be_same.then(digests),
            model: repeated.model().unwrap_or_default().into(),
            asks_repeatable,
            temperature,
            answer: match (repeated.stream(), repeated.other_stream_options()) {
                (false, _) => Form::Whole,
                (true, false) => Form::Stream {
                    usage: repeated.include_usage(),
                },
                (true, true) => Form::OtherStream,
            },
        })
    }
}

fn relevant(headers: &HeaderMap) -> Vec<(&'static str, Vec<u8>)> {
    let values = |name: &'static str| {
        headers
            .get_all(name)
            .iter()
            .map(move |value| (name, value.as_bytes().to_vec()))
    };
    RELEVANT.into_iter().flat_map(values).collect()
}

/// Whose request it is: nobody gets another's reply. Who asks with other credentials is somebody else, also where only an
/// engine can tell whether they are right.
fn tenant(headers: &HeaderMap) -> String {
    let mut digest = Sha256::new();
    let mut any = false;
    for name in CREDENTIALS {
        for value in headers.get_all(name) {
            any = true;
            digest.update((name.len() as u64).to_le_bytes());
            digest.update(name);
            digest.update((value.len() as u64).to_le_bytes());
            digest.update(value.as_bytes());
        }
    }
    if any {
        digest
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    } else {
        "default".to_owned()
    }
}
