//! Changes that a router makes to its workers, and why it does not.

use crate::SharedWorker;

/// A change that this router has to make to its workers.
#[derive(Clone, Debug)]
pub struct WorkerChange {
    pub(crate) key: String,
    /// The worker.
    pub name: String,
    /// Whether the registration changes; if not, only the drain does.
    pub is_new_registration: bool,
    /// Whether this router has the worker drained.
    pub was_drained: bool,
    /// The worker as it is to be.
    pub wanted: SharedWorker,
}

/// Why this router does not use a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationRefusal {
    /// The reason.
    pub reason: Refusal,
    /// The same for operators, with the value that is wrong.
    pub detail: String,
}

/// The reason why this router does not use a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The file or discovery has a worker of that name.
    Configured,
    /// The address is forbidden for engines.
    Forbidden,
    /// The entry has a problem, or the configuration has one with it.
    BadEntry,
    /// There are too many workers.
    TooMany,
    /// The value cannot be read.
    Unreadable,
}

impl Refusal {
    pub(crate) const ALL: [Self; 5] = [
        Self::Configured,
        Self::Forbidden,
        Self::BadEntry,
        Self::TooMany,
        Self::Unreadable,
    ];

    /// Returns its name in metrics and logs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Configured => "configured",
            Self::Forbidden => "forbidden",
            Self::BadEntry => "bad_entry",
            Self::TooMany => "too_many",
            Self::Unreadable => "unreadable",
        }
    }
}
