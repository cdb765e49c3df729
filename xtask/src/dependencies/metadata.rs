//! The checked fields of packages in `cargo metadata`.

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
    /// The source; `None` is a local folder.
    pub(super) source: Option<String>,
    /// The registries to which it may be published; `None` is any.
    pub(super) publish: Option<Vec<String>>,
    pub(super) dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Dependency {
    pub(super) name: String,
    /// The accepted versions.
    pub(super) req: String,
    /// Set for a local folder.
    pub(super) path: Option<String>,
}

impl Metadata {
    pub(super) fn read(json: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(json)
            .map_err(|error| format!("the output of cargo metadata is not understood: {error}"))
    }
}

impl Package {
    /// Whether it is an unpublished crate of this workspace.
    pub(super) fn is_private(&self) -> bool {
        self.source.is_none() && self.publish.as_ref().is_some_and(Vec::is_empty)
    }
}
