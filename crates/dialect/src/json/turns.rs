//! Reads a list of messages with the parts of each, in one walk.

use super::{error::JsonError, raw::RawJson, scan::JsonScanner, text::decode};
use crate::turns::Turn;

/// Calls `each` for every message of a list, in order; returns false if `text` is no list.
pub(crate) fn walk_turns<'a>(text: &'a str, mut each: impl FnMut(&Turn<'a>)) -> bool {
    let mut scan = JsonScanner::new(text);
    // The text was checked before: it has no errors.
    scan.peek() == Some(b'[') && scan.turns(&mut |turn| each(&turn)).is_ok()
}

impl<'a> JsonScanner<'a> {
    /// Reads a list as [`Self::value`] does, and calls `each` for every element.
    pub(super) fn turns(
        &mut self,
        each: &mut dyn FnMut(Turn<'a>),
    ) -> Result<RawJson<'a>, JsonError> {
        let from = self.at;
        self.count()?;
        self.open()?;
        let mut ended = self.ends(b']');
        while !ended {
            let turn = self.turn()?;
            each(turn);
            ended = self.next_or_end(b']')?;
        }
        Ok(self.read_since(from))
    }

    fn turn(&mut self) -> Result<Turn<'a>, JsonError> {
        let from = self.at;
        self.odd_escapes = false;
        let (mut role, mut content, mut has_more) = (None, None, false);
        if self.peek() == Some(b'{') {
            self.count()?;
            self.open()?;
            let mut ended = self.ends(b'}');
            while !ended {
                let key = self.key()?;
                self.colon()?;
                let value = Some(self.value()?);
                match &*decode(key) {
                    "role" => role = value,
                    "content" => content = value,
                    _ => has_more = true,
                }
                ended = self.next_or_end(b'}')?;
            }
        } else {
            self.value()?;
            has_more = true;
        }
        let present = |value: Option<RawJson<'a>>| value.filter(|value| !value.is_null());
        Ok(Turn {
            raw: self.read_since(from),
            role: present(role),
            content: present(content),
            has_more,
            has_odd_escapes: self.odd_escapes,
        })
    }

    /// Closes an empty container.
    fn ends(&mut self, close: u8) -> bool {
        let ends = self.peek() == Some(close);
        if ends {
            self.at += 1;
            self.depth -= 1;
        }
        ends
    }

    /// Reads the comma before the next value of a container, or closes it.
    fn next_or_end(&mut self, close: u8) -> Result<bool, JsonError> {
        self.space();
        if self.peek() == Some(b',') {
            self.at += 1;
            self.space();
            return Ok(false);
        }
        if self.ends(close) {
            return Ok(true);
        }
        Err(self.wrong("expected a comma or the end of the container"))
    }
}
