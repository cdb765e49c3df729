//! Walks the members of an object, or the elements of an array.

use super::{error::JsonError, raw::RawJson, scan::JsonScanner, text::decode};
use crate::turns::Turn;

/// Walks the members of the object in `text`: raw key (with its quotes) and value. Ends after the
/// first error; text after the object is an error.
pub(crate) fn members(text: &str) -> impl Iterator<Item = Result<(&str, RawJson<'_>), JsonError>> {
    ContainerWalk {
        scan: JsonScanner::new(text),
        kind: ContainerKind::Object,
        state: WalkState::Start,
        turns: None,
    }
    .map(|item| item.map(|(key, value)| (key.unwrap_or(r#""""#), value)))
}

/// A member of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyMember<'a> {
    /// Its name, with the quotes.
    pub(crate) key: &'a str,
    pub(crate) value: RawJson<'a>,
    /// The number of values and keys in it, with its own.
    pub(crate) nodes: u32,
}

/// Walks the members of a body, as [`members`] does, and calls `each` for every message in the list
/// `messages`.
pub(crate) fn body_members<'a, 'e>(
    text: &'a str,
    each: Option<&'e mut dyn FnMut(Turn<'a>)>,
) -> impl Iterator<Item = Result<BodyMember<'a>, JsonError>> + use<'a, 'e> {
    let mut walk = ContainerWalk {
        scan: JsonScanner::new(text),
        kind: ContainerKind::Object,
        state: WalkState::Start,
        turns: each,
    };
    std::iter::from_fn(move || {
        // The first one is the body itself.
        let before = walk.scan.nodes.max(1);
        let item = walk.next()?;
        Some(item.map(|(key, value)| BodyMember {
            key: key.unwrap_or(r#""""#),
            value,
            nodes: walk.scan.nodes - before,
        }))
    })
}

/// Walks the elements of the array in `text`, as [`members`] does.
pub(crate) fn elements(text: &str) -> impl Iterator<Item = Result<RawJson<'_>, JsonError>> {
    ContainerWalk {
        scan: JsonScanner::new(text),
        kind: ContainerKind::Array,
        state: WalkState::Start,
        turns: None,
    }
    .map(|item| item.map(|(_, value)| value))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ContainerKind {
    Object,
    Array,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WalkState {
    Start,
    Between,
    Over,
}

struct ContainerWalk<'a, 'e> {
    scan: JsonScanner<'a>,
    kind: ContainerKind,
    state: WalkState,
    /// Gets the messages of a body.
    turns: Option<&'e mut dyn FnMut(Turn<'a>)>,
}

type JsonMember<'a> = (Option<&'a str>, RawJson<'a>);

impl<'a> ContainerWalk<'a, '_> {
    fn step(&mut self) -> Result<Option<JsonMember<'a>>, JsonError> {
        let (open, close) = match self.kind {
            ContainerKind::Object => (b'{', b'}'),
            ContainerKind::Array => (b'[', b']'),
        };
        let scan = &mut self.scan;
        scan.space();
        if self.state == WalkState::Start {
            scan.expect(
                open,
                if open == b'{' {
                    "expected an object"
                } else {
                    "expected an array"
                },
            )?;
            scan.depth = 1;
            scan.count()?;
            scan.space();
            if scan.peek() == Some(close) {
                return self.close();
            }
        } else {
            match scan.peek() {
                Some(b',') => scan.at += 1,
                Some(byte) if byte == close => return self.close(),
                _ => return Err(scan.wrong("expected a comma or the end of the container")),
            }
            scan.space();
        }
        self.state = WalkState::Between;
        let key = match self.kind {
            ContainerKind::Object => {
                let key = scan.key()?;
                scan.colon()?;
                Some(key)
            }
            ContainerKind::Array => None,
        };
        let value = match (&mut self.turns, key) {
            (Some(each), Some(key)) if scan.peek() == Some(b'[') && decode(key) == "messages" => {
                scan.turns(each)?
            }
            _ => scan.value()?,
        };
        Ok(Some((key, value)))
    }

    fn close(&mut self) -> Result<Option<JsonMember<'a>>, JsonError> {
        self.scan.at += 1;
        self.state = WalkState::Over;
        self.scan.end()?;
        Ok(None)
    }
}

impl<'a> Iterator for ContainerWalk<'a, '_> {
    type Item = Result<JsonMember<'a>, JsonError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.state == WalkState::Over {
            return None;
        }
        let item = self.step().transpose();
        if !matches!(item, Some(Ok(_))) {
            self.state = WalkState::Over;
        }
        item
    }
}
