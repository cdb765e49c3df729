//! Keeps apart what is remembered of prompts with different salts.

use xxhash_rust::xxh3::xxh3_64;

/// The prompts with one salt. What is remembered of a prompt saves work only for others of its
/// group: a salt stands for a tenant, and the work that is saved would tell one tenant of another
/// one's prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaltGroup(u64);

impl SaltGroup {
    /// The group of all prompts without a salt.
    pub const UNSALTED: Self = Self(0);

    /// Returns the group of a salt.
    ///
    /// ```
    /// use prompt::SaltGroup;
    ///
    /// assert_eq!(SaltGroup::of(None), SaltGroup::UNSALTED);
    /// assert_ne!(SaltGroup::of(Some("a")), SaltGroup::of(Some("b")));
    /// ```
    pub fn of(salt: Option<&str>) -> Self {
        salt.map_or(Self::UNSALTED, |salt| Self(xxh3_64(salt.as_bytes())))
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }
}
