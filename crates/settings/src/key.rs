//! One key of a section, as data: checking, defaults, the JSON schema, the reference page and the
//! simulator all read it.

use crate::{Availability, ValueKind};

/// One key of a section.
#[derive(Clone, Copy, Debug)]
pub struct KeySchema {
    /// Name in its section.
    pub name: &'static str,
    /// Values that it takes.
    pub kind: ValueKind,
    /// As a user would write it; `~` = unset. Sections, lists and maps of sections have none.
    pub default: &'static str,
    /// One line of documentation.
    pub doc: &'static str,
    /// Whether this version supports it.
    pub built: Availability,
    /// When a changed value takes effect.
    pub reload: Reload,
    /// Whether a simulation may vary it (`simulate --set`).
    pub simulated: bool,
}

/// When a changed value takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reload {
    /// At once.
    Live,
    /// At the next start: the key concerns bound sockets, sized tables or tasks that are started
    /// once.
    Restart,
}

impl KeySchema {
    /// Returns whether every key below is unsupported too.
    pub fn is_later(&self) -> bool {
        match self.kind {
            // A section without keys has only its own availability.
            ValueKind::Section([]) => self.built == Availability::Later,
            ValueKind::Section(keys) => {
                self.built == Availability::Later || keys.iter().all(Self::is_later)
            }
            _ => self.built == Availability::Later,
        }
    }
}
