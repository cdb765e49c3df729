//! Types of the standard library, and of this crate, that values are read into.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    num::{NonZeroU16, NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use crate::{
    AddressRange, CheckedValue, ListenSetting, RedisUrl, Secret, Setting, Value, ValueKind,
    WebOrigin,
    kinds::{ANY_INT, COUNT, PORT, SECONDS},
};

impl Setting for bool {
    const KIND: ValueKind = ValueKind::Bool;

    fn read(value: &CheckedValue) -> Option<Self> {
        match value.value {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }
}

impl Setting for u64 {
    const KIND: ValueKind = ANY_INT;

    fn read(value: &CheckedValue) -> Option<Self> {
        match value.value {
            Value::Int(number) | Value::Size(number) => Some(number),
            _ => None,
        }
    }
}

/// A greater number than the type holds becomes its greatest one: a kind with a wider range is one
/// whose upper end means "no limit".
impl Setting for usize {
    const KIND: ValueKind = ANY_INT;

    fn read(value: &CheckedValue) -> Option<Self> {
        u64::read(value).map(|number| Self::try_from(number).unwrap_or(Self::MAX))
    }
}

impl Setting for u32 {
    const KIND: ValueKind = ValueKind::Int {
        min: 0,
        max: u32::MAX as u64,
    };

    fn read(value: &CheckedValue) -> Option<Self> {
        u64::read(value).and_then(|number| Self::try_from(number).ok())
    }
}

impl Setting for u16 {
    const KIND: ValueKind = PORT;

    fn read(value: &CheckedValue) -> Option<Self> {
        u64::read(value).and_then(|number| Self::try_from(number).ok())
    }
}

impl Setting for NonZeroU16 {
    const KIND: ValueKind = PORT;

    fn read(value: &CheckedValue) -> Option<Self> {
        u16::read(value).and_then(Self::new)
    }
}

impl Setting for NonZeroU32 {
    const KIND: ValueKind = COUNT;

    fn read(value: &CheckedValue) -> Option<Self> {
        u32::read(value).and_then(Self::new)
    }
}

impl Setting for NonZeroUsize {
    const KIND: ValueKind = COUNT;

    fn read(value: &CheckedValue) -> Option<Self> {
        usize::read(value).and_then(Self::new)
    }
}

impl Setting for f64 {
    const KIND: ValueKind = crate::kinds::RATIO;

    fn read(value: &CheckedValue) -> Option<Self> {
        match value.value {
            Value::Float(number) => Some(number),
            _ => None,
        }
    }
}

impl Setting for Duration {
    const KIND: ValueKind = SECONDS;

    fn read(value: &CheckedValue) -> Option<Self> {
        match value.value {
            Value::Duration(duration) => Some(duration),
            Value::Counted { count, unit } => Some(unit.duration(count)),
            _ => None,
        }
    }
}

impl Setting for String {
    const KIND: ValueKind = ValueKind::Text;

    fn read(value: &CheckedValue) -> Option<Self> {
        match &value.value {
            Value::Text(text) | Value::WorkerUrl { url: text, .. } => Some(text.clone()),
            _ => None,
        }
    }
}

impl Setting for PathBuf {
    const KIND: ValueKind = ValueKind::Path;

    fn read(value: &CheckedValue) -> Option<Self> {
        value.text().map(Self::from)
    }
}

impl Setting for Secret {
    const KIND: ValueKind = ValueKind::Secret;

    fn read(value: &CheckedValue) -> Option<Self> {
        value.secret().cloned()
    }
}

impl Setting for ListenSetting {
    const KIND: ValueKind = ValueKind::Listen;

    fn read(value: &CheckedValue) -> Option<Self> {
        value.listen_if_set().cloned()
    }
}

impl Setting for AddressRange {
    const KIND: ValueKind = ValueKind::AddressRange;

    fn read(value: &CheckedValue) -> Option<Self> {
        value.text()?.parse().ok()
    }
}

impl Setting for WebOrigin {
    const KIND: ValueKind = ValueKind::WebOrigin;

    fn read(value: &CheckedValue) -> Option<Self> {
        value.text()?.parse().ok()
    }
}

impl Setting for RedisUrl {
    const KIND: ValueKind = ValueKind::RedisUrl;

    fn read(value: &CheckedValue) -> Option<Self> {
        match &value.value {
            Value::RedisUrl(url) => Some(url.clone()),
            _ => None,
        }
    }
}

impl Setting for serde_json::Value {
    const KIND: ValueKind = ValueKind::Free;

    fn read(value: &CheckedValue) -> Option<Self> {
        match &value.value {
            Value::Free(value) => Some(value.clone()),
            _ => None,
        }
    }
}

/// An address with a port; a Unix socket is none.
impl Setting for SocketAddr {
    const KIND: ValueKind = ValueKind::Listen;

    fn read(value: &CheckedValue) -> Option<Self> {
        match value.listen_if_set()? {
            ListenSetting::Tcp(address) => Some(*address),
            ListenSetting::Unix(_) => None,
        }
    }
}

/// Any mapping; unset is one without keys.
impl Setting for serde_json::Map<String, serde_json::Value> {
    const KIND: ValueKind = ValueKind::Free;

    fn read(value: &CheckedValue) -> Option<Self> {
        match &value.value {
            Value::Unset => Some(Self::new()),
            Value::Free(serde_json::Value::Object(entries)) => Some(entries.clone()),
            _ => None,
        }
    }
}

/// A key that may be unset, or a word such as `auto`.
impl<T: Setting> Setting for Option<T> {
    const KIND: ValueKind = T::KIND;

    fn read(value: &CheckedValue) -> Option<Self> {
        Some(T::read(value))
    }

    fn keep_restart_keys(&mut self, started: &Self) {
        if let (Some(new), Some(started)) = (self, started) {
            new.keep_restart_keys(started);
        }
    }
}

/// Entries with a problem are left out: it is reported already.
impl<T: Setting> Setting for Vec<T> {
    const KIND: ValueKind = ValueKind::List(&T::KIND);

    fn read(value: &CheckedValue) -> Option<Self> {
        match &value.value {
            Value::List(items) => Some(items.iter().filter_map(T::read).collect()),
            _ => None,
        }
    }
}

/// Names of the user's choice, in the order of the file.
impl<T: Setting> Setting for Vec<(String, T)> {
    const KIND: ValueKind = ValueKind::Map(&T::KIND);

    fn read(value: &CheckedValue) -> Option<Self> {
        match &value.value {
            Value::Map(entries) => Some(
                entries
                    .iter()
                    .filter_map(|(name, value)| Some((name.clone(), T::read(value)?)))
                    .collect(),
            ),
            _ => None,
        }
    }
}

/// Names of the user's choice.
impl<T: Setting> Setting for BTreeMap<String, T> {
    const KIND: ValueKind = ValueKind::Map(&T::KIND);

    fn read(value: &CheckedValue) -> Option<Self> {
        Vec::read(value).map(Self::from_iter)
    }
}
