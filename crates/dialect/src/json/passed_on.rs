//! Members that a translation passes on unchanged.
//!
//! The walk that reads a body keeps its members, and the writer of the translated body notes where
//! the copies stand: so neither body is walked again.

use std::ops::Range;

use super::{raw::RawJson, walk::BodyMember};

/// The members of a body, in their order.
#[derive(Debug)]
pub(crate) struct BodyMembers<'a> {
    text: &'a str,
    /// Empty if there are more than [`Self::MOST`].
    kept: Vec<BodyMember<'a>>,
    count: usize,
}

impl<'a> BodyMembers<'a> {
    /// Most members that are kept: some 160 KB.
    pub(crate) const MOST: usize = 4096;

    /// Returns the members of this body, of which none is read yet.
    pub(crate) fn of(text: &'a str) -> Self {
        Self {
            text,
            kept: Vec::new(),
            count: 0,
        }
    }

    pub(crate) fn add(&mut self, member: BodyMember<'a>) {
        self.count += 1;
        if self.count <= Self::MOST {
            self.kept.push(member);
        } else {
            self.kept = Vec::new();
        }
    }

    /// Returns the text of the body.
    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// Returns all members; `None` if there are too many.
    pub(super) fn all(&self) -> Option<&[BodyMember<'a>]> {
        (self.count <= Self::MOST).then_some(&self.kept[..])
    }
}

/// The places in a translated body of the members that were passed on, behind all others. They were
/// checked where they came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassedOn {
    /// The end of the member before them; 0: nothing is known of the body.
    from: usize,
    /// The places of the names, with their quotes, and of the values.
    places: Vec<(Range<usize>, Range<usize>)>,
    nodes: u32,
}

impl PassedOn {
    /// Returns the places behind this end of a member, of which none is taken yet.
    pub(super) fn behind(from: usize) -> Self {
        Self {
            from,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, name: Range<usize>, value: Range<usize>, nodes: u32) {
        self.places.push((name, value));
        self.nodes = self.nodes.saturating_add(nodes);
    }

    /// Returns the end of the member before them; `None` if the body must be walked as a whole.
    pub(crate) fn begin(&self) -> Option<usize> {
        // Behind the brace there is no member before them.
        Some(self.from).filter(|from| *from > 1)
    }

    /// Returns the number of values and names in them.
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the raw names and the values in the translated body; `None` if it is another body.
    pub(crate) fn members<'b>(&self, text: &'b str) -> Option<Vec<(&'b str, RawJson<'b>)>> {
        let member = |(name, value): &(Range<usize>, Range<usize>)| {
            Some((
                text.get(name.clone())?,
                RawJson::found_at(text, value.clone())?,
            ))
        };
        self.places.iter().map(member).collect()
    }
}
