//! What `cargo metadata` says of packages, as far as it is checked.

use serde::Deserialize;

#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    pub(super) packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    /// An SPDX expression.
    pub(super) license: Option<String>,
    /// Where it comes from; `None`: a folder.
    pub(super) source: Option<String>,
    /// The registries it may be published to; `None`: any.
    pub(super) publish: Option<Vec<String>>,
    pub(super) dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Dependency {
    pub(super) name: String,
    /// The versions that will do.
    pub(super) req: String,
    /// Set where it is a folder.
    pub(super) path: Option<String>,
}

impl Metadata {
    pub(super) fn read(json: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(json)
            .map_err(|error| format!("the output of cargo metadata is not understood: {error}"))
    }
}

impl Package {
    /// A crate of ours that is not published.
    pub(super) fn is_private(&self) -> bool {
        self.source.is_none() && self.publish.as_ref().is_some_and(Vec::is_empty)
    }
}
