//! Parses values of simple kinds from every notation.

use crate::{
    AddressRange, Availability, CheckUrl, ListenSetting, LocatedValue, RedisUrl, Secret, ValueKind,
    ValueNode, WebOrigin, WordChoice, checked_value::Value, nearest::nearest, notation,
    value_error::ValueError,
};

/// Reads a value whose `${NAME}` are already replaced. `written` is the value before that, for
/// display in errors.
///
/// # Errors
///
/// If the value is not of the kind.
pub fn scalar(
    kind: &ValueKind,
    given: &LocatedValue,
    written: &LocatedValue,
    check_url: CheckUrl,
) -> Result<Value, ValueError> {
    match kind {
        ValueKind::WordOr(choices, other) if !has_word(choices, given) => {
            scalar(other, given, written, check_url).map_err(|fault| {
                // The words are part of the expected values, unless the error itself is more
                // specific.
                if fault.expected.as_deref() == Some(&other.expected()) {
                    ValueError {
                        secret: fault.secret,
                        ..ValueError::unusable(written, kind)
                    }
                } else {
                    fault
                }
            })
        }
        ValueKind::Word(choices) | ValueKind::WordOr(choices, _) => {
            one_of(choices, text(given), written, kind)
        }
        ValueKind::WorkerUrl => worker_url(kind, given, written, check_url),
        _ => plain(kind, given).ok_or_else(|| ValueError::unusable(written, kind)),
    }
}

/// Reads a value whose only error is that it is not of the kind.
fn plain(kind: &ValueKind, given: &LocatedValue) -> Option<Value> {
    let text = text(given);
    let loose = loose(given);
    match *kind {
        ValueKind::Bool => boolean(given, loose).map(Value::Bool),
        ValueKind::Int { min, max } => whole(given, loose)
            .filter(|number| (min..=max).contains(number))
            .map(Value::Int),
        ValueKind::Counted { unit, min, max } => {
            let in_words = || {
                text.filter(|text| has_unit(text))
                    .and_then(notation::duration)
                    .and_then(|duration| unit.count(duration))
            };
            whole(given, loose)
                .or_else(in_words)
                .filter(|number| (min..=max).contains(number))
                .map(|count| Value::Counted { count, unit })
        }
        ValueKind::Float(range) => number(given, loose)
            .filter(|number| range.holds(*number))
            .map(Value::Float),
        ValueKind::Duration { least } => {
            let read = match text {
                Some(text) => notation::duration(text),
                None => number(given, None).and_then(notation::seconds),
            };
            read.filter(|duration| (least..=notation::MAX_DURATION).contains(duration))
                .map(Value::Duration)
        }
        ValueKind::Size { min, max } => text
            .map_or_else(|| whole(given, None), notation::size)
            .filter(|bytes| (min..=max).contains(bytes))
            .map(Value::Size),
        ValueKind::Listen => text?.parse::<ListenSetting>().ok().map(Value::Listen),
        ValueKind::Secret => text
            .filter(|text| is_one_line(text) && !text.is_empty())
            .map(|text| Value::Secret(Secret::new(text))),
        ValueKind::RedisUrl => text?.parse::<RedisUrl>().ok().map(Value::RedisUrl),
        ValueKind::KeyPrefix { max } => line(text, |text| is_key_prefix(text, max)),
        ValueKind::WebOrigin => line(text, |text| text.parse::<WebOrigin>().is_ok()),
        ValueKind::AddressRange => line(text, |text| text.parse::<AddressRange>().is_ok()),
        ValueKind::Text => line(text, |_| true),
        ValueKind::Path => line(text, |text| !text.is_empty()),
        ValueKind::HeaderName => line(text, is_header_name),
        ValueKind::UrlPath => line(text, is_url_path),
        ValueKind::Endpoint => line(text, is_endpoint),
        ValueKind::Stream(schemes) => line(text, |text| is_stream(text, schemes)),
        ValueKind::Word(_)
        | ValueKind::WordOr(..)
        | ValueKind::WorkerUrl
        | ValueKind::Free
        | ValueKind::List(_)
        | ValueKind::Map(_)
        | ValueKind::Section(_)
        | ValueKind::Worker(_) => None,
    }
}

fn text(given: &LocatedValue) -> Option<&str> {
    match &given.node {
        ValueNode::Text(text) | ValueNode::Loose(text) => Some(text),
        _ => None,
    }
}

/// Returns a text that may be a number too: one from elsewhere than the file.
fn loose(given: &LocatedValue) -> Option<&str> {
    match &given.node {
        ValueNode::Loose(text) => Some(text),
        _ => None,
    }
}

fn worker_url(
    kind: &ValueKind,
    given: &LocatedValue,
    written: &LocatedValue,
    check_url: CheckUrl,
) -> Result<Value, ValueError> {
    let url = text(given).ok_or_else(|| ValueError::unusable(written, kind))?;
    // The reason may quote the URL, with a password or a variable's value in it.
    let quoted = |reason: String| reason.replace(url, written.shown().as_str().unwrap_or("***"));
    check_url(url)
        .map(|host_port| Value::WorkerUrl {
            url: url.to_owned(),
            host_port,
        })
        .map_err(|reason| ValueError::new(quoted(reason)).expected(kind.expected()))
}

fn has_word(choices: &[WordChoice], given: &LocatedValue) -> bool {
    text(given).is_some_and(|text| choices.iter().any(|choice| choice.matches(text)))
}

fn one_of(
    choices: &[WordChoice],
    text: Option<&str>,
    written: &LocatedValue,
    kind: &ValueKind,
) -> Result<Value, ValueError> {
    let text = text.ok_or_else(|| ValueError::unusable(written, kind))?;
    match choices.iter().find(|choice| choice.matches(text)) {
        Some(WordChoice {
            word,
            built: Availability::Now,
            ..
        }) => Ok(Value::Word(word)),
        Some(choice) => {
            Err(ValueError::later(&format!("`{}`", choice.word)).expected(kind.expected()))
        }
        None => {
            let words = choices
                .iter()
                .filter(|choice| choice.built == Availability::Now)
                .map(|choice| choice.word);
            Err(ValueError {
                nearest: nearest(text, words),
                ..ValueError::unusable(written, kind)
            })
        }
    }
}

fn boolean(given: &LocatedValue, loose: Option<&str>) -> Option<bool> {
    match (&given.node, loose) {
        (ValueNode::Bool(value), _) => Some(*value),
        (_, Some("true" | "1")) => Some(true),
        (_, Some("false" | "0")) => Some(false),
        _ => None,
    }
}

fn whole(given: &LocatedValue, loose: Option<&str>) -> Option<u64> {
    match (&given.node, loose) {
        (ValueNode::Int(number), _) => u64::try_from(*number).ok(),
        (_, Some(text)) => text.trim().parse().ok(),
        _ => None,
    }
}

/// Returns whether a duration contains its own unit: a bare number has that of the key.
fn has_unit(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_alphabetic())
}

fn number(given: &LocatedValue, loose: Option<&str>) -> Option<f64> {
    match (&given.node, loose) {
        #[expect(
            clippy::cast_precision_loss,
            reason = "no range of ours reaches where it matters"
        )]
        (ValueNode::Int(number), _) => Some(*number as f64),
        (ValueNode::Float(number), _) => Some(*number),
        (_, Some(text)) => text.trim().parse().ok(),
        _ => None,
    }
}

fn line(text: Option<&str>, fits: impl Fn(&str) -> bool) -> Option<Value> {
    text.filter(|text| is_one_line(text) && fits(text))
        .map(|text| Value::Text(text.to_owned()))
}

fn is_one_line(text: &str) -> bool {
    !text.contains(|character: char| character.is_control())
}

/// Checks a key prefix: pattern characters would make a search for the keys match others too.
fn is_key_prefix(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"*?[]\\".contains(&byte))
}

/// Checks for a token, as HTTP defines it.
fn is_header_name(text: &str) -> bool {
    let may = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=256).contains(&text.len()) && text.bytes().all(may)
}

fn is_url_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic()) && !text.contains('#')
}

/// Checks only the shape, like [`is_endpoint`]; other faults show when the stream is opened.
fn is_stream(text: &str, schemes: &[&str]) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else {
        return false;
    };
    let known = schemes.contains(&scheme);
    match scheme {
        "tcp" | "ipc" => known && is_endpoint(text),
        _ => {
            known
                && !rest.starts_with(['/', '?', ':'])
                && !rest.is_empty()
                && rest.bytes().all(|b| b.is_ascii_graphic())
        }
    }
}

/// Checks only the shape: other faults show when the endpoint is connected to.
fn is_endpoint(text: &str) -> bool {
    if let Some(path) = text.strip_prefix("ipc://") {
        return !path.is_empty();
    }
    let Some((host, port)) = text
        .strip_prefix("tcp://")
        .and_then(|rest| rest.rsplit_once(':'))
    else {
        return false;
    };
    let host_fits = match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(host) => host.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            host == "*"
                || (!host.is_empty()
                    && host
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)))
        }
    };
    host_fits
        && port.bytes().all(|byte| byte.is_ascii_digit())
        && port.parse::<u16>().is_ok_and(|port| port > 0)
}
