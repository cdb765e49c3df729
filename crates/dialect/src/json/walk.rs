//! Walks the members of an object, or the elements of an array.

use super::{JsonError, RawJson, scan::JsonScanner};

/// Walks the members of the object in `text`: raw key (with its quotes) and value. Ends after the
/// first error; text after the object is an error.
pub(crate) fn members(text: &str) -> impl Iterator<Item = Result<(&str, RawJson<'_>), JsonError>> {
    ContainerWalk {
        scan: JsonScanner::new(text),
        kind: ContainerKind::Object,
        state: WalkState::Start,
    }
    .map(|item| item.map(|(key, value)| (key.unwrap_or(r#""""#), value)))
}

/// Walks the elements of the array in `text`, as [`members`] does.
pub(crate) fn elements(text: &str) -> impl Iterator<Item = Result<RawJson<'_>, JsonError>> {
    ContainerWalk {
        scan: JsonScanner::new(text),
        kind: ContainerKind::Array,
        state: WalkState::Start,
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

struct ContainerWalk<'a> {
    scan: JsonScanner<'a>,
    kind: ContainerKind,
    state: WalkState,
}

type JsonMember<'a> = (Option<&'a str>, RawJson<'a>);

impl<'a> ContainerWalk<'a> {
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
        Ok(Some((key, scan.value()?)))
    }

    fn close(&mut self) -> Result<Option<JsonMember<'a>>, JsonError> {
        self.scan.at += 1;
        self.state = WalkState::Over;
        self.scan.end()?;
        Ok(None)
    }
}

impl<'a> Iterator for ContainerWalk<'a> {
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
