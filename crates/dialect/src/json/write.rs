//! Writes objects and arrays into a text, member by member.

use std::fmt::{Display, Write as _};

use super::{
    passed_on::{BodyMembers, PassedOn},
    raw::RawJson,
    text::{decode, write_string},
    walk::members,
};

/// A writer of an object. [`Self::close`] ends it.
#[derive(Debug)]
pub(crate) struct ObjectWriter<'o> {
    out: &'o mut String,
    empty: bool,
}

impl<'o> ObjectWriter<'o> {
    pub(crate) fn open(out: &'o mut String) -> Self {
        out.push('{');
        Self { out, empty: true }
    }

    /// Returns the place of this member's value: the caller must write exactly one.
    pub(crate) fn key(&mut self, name: &str) -> &mut String {
        if !std::mem::replace(&mut self.empty, false) {
            self.out.push(',');
        }
        write_string(self.out, name);
        self.out.push(':');
        self.out
    }

    pub(crate) fn text(&mut self, name: &str, value: &str) {
        write_string(self.key(name), value);
    }

    /// Writes a value that is JSON already.
    pub(crate) fn raw(&mut self, name: &str, json: &str) {
        self.key(name).push_str(json);
    }

    /// Writes the value if it is present.
    pub(crate) fn some(&mut self, name: &str, value: Option<RawJson<'_>>) {
        if let Some(value) = value {
            self.raw(name, value.as_str());
        }
    }

    /// Writes the members of `body` unchanged, except those that are written in another form.
    /// Returns their places, which count if no other member is written behind them.
    pub(crate) fn pass_on(
        &mut self,
        body: &BodyMembers<'_>,
        is_written: impl Fn(&str) -> bool,
    ) -> PassedOn {
        let Some(all) = body.all() else {
            for (key, value) in members(body.text()).flatten() {
                let name = decode(key);
                if !is_written(&name) {
                    self.raw(&name, value.as_str());
                }
            }
            return PassedOn::default();
        };
        let mut passed_on = PassedOn::behind(self.out.len());
        for member in all {
            let name = decode(member.key);
            if is_written(&name) {
                continue;
            }
            let name_from = self.out.len() + usize::from(!self.empty);
            let place = self.key(&name);
            // A colon stands between the name and the value.
            let (name_end, value_from) = (place.len() - 1, place.len());
            place.push_str(member.value.as_str());
            passed_on.add(name_from..name_end, value_from..place.len(), member.nodes);
        }
        passed_on
    }

    /// Writes a number of any width; its `Display` form is its JSON.
    pub(crate) fn number(&mut self, name: &str, value: impl Display) {
        let _ = write!(self.key(name), "{value}");
    }

    pub(crate) fn object(&mut self, name: &str) -> ObjectWriter<'_> {
        ObjectWriter::open(self.key(name))
    }

    pub(crate) fn array(&mut self, name: &str) -> ArrayWriter<'_> {
        ArrayWriter::open(self.key(name))
    }

    pub(crate) fn close(self) {
        self.out.push('}');
    }
}

/// A writer of an array. [`Self::close`] ends it.
#[derive(Debug)]
pub(crate) struct ArrayWriter<'o> {
    out: &'o mut String,
    empty: bool,
}

impl<'o> ArrayWriter<'o> {
    pub(crate) fn open(out: &'o mut String) -> Self {
        out.push('[');
        Self { out, empty: true }
    }

    /// Returns the place of the next element: the caller must write exactly one.
    pub(crate) fn next(&mut self) -> &mut String {
        if !std::mem::replace(&mut self.empty, false) {
            self.out.push(',');
        }
        self.out
    }

    pub(crate) fn object(&mut self) -> ObjectWriter<'_> {
        ObjectWriter::open(self.next())
    }

    pub(crate) fn close(self) {
        self.out.push(']');
    }
}
