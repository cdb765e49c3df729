//! What cargo says about the crates: `cargo metadata`, `cargo tree` and `Cargo.lock`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Deserialize;

/// A crate's name and version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CrateId {
    pub(super) name: String,
    pub(super) version: String,
}

impl fmt::Display for CrateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.version)
    }
}

/// `cargo metadata`.
#[derive(Debug, Deserialize)]
pub(super) struct Graph {
    pub(super) packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
pub(super) struct Package {
    id: String,
    name: String,
    version: String,
    /// An SPDX expression.
    pub(super) license: Option<String>,
    /// The source; `None` is a local folder.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Debug, Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Debug, Deserialize)]
struct EdgeKind {
    /// `None` is a dependency of the code itself, not of its tests or build script.
    kind: Option<String>,
}

impl Graph {
    pub(super) fn read(json: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(json)
            .map_err(|error| format!("the output of cargo metadata is not understood: {error}"))
    }

    /// Returns the crates that the package's code depends on.
    pub(super) fn needs(&self, package: &Package) -> impl Iterator<Item = CrateId> {
        let nodes = self.resolve.nodes.iter();
        let edges = nodes
            .filter(|node| node.id == package.id)
            .flat_map(|node| &node.deps)
            .filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        edges.filter_map(|edge| {
            let found = self.packages.iter().find(|other| other.id == edge.pkg);
            found.map(Package::id)
        })
    }
}

impl Package {
    pub(super) fn id(&self) -> CrateId {
        CrateId {
            name: self.name.clone(),
            version: self.version.clone(),
        }
    }

    pub(super) fn is_local(&self) -> bool {
        self.source.is_none()
    }
}

/// Reads `cargo tree --prefix none --format {p}`: `NAME vVERSION` and remarks.
pub(super) fn tree(text: &str) -> Result<BTreeSet<CrateId>, String> {
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let mut words = line.split(' ');
            let version = |word: &str| word.strip_prefix('v').map(str::to_owned);
            match (words.next(), words.next().and_then(version)) {
                (Some(name), Some(version)) => Ok(CrateId {
                    name: name.to_owned(),
                    version,
                }),
                _ => Err(format!("a line of cargo tree is not understood: {line:?}")),
            }
        })
        .collect()
}

/// The SHA-256 of each crate's archive, from `Cargo.lock`.
#[derive(Debug)]
pub(super) struct Checksums(BTreeMap<CrateId, String>);

#[derive(Debug, Deserialize)]
struct Lock {
    package: Vec<LockedPackage>,
}

#[derive(Debug, Deserialize)]
struct LockedPackage {
    name: String,
    version: String,
    checksum: Option<String>,
}

impl Checksums {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let lock: Lock = toml::from_str(text)
            .map_err(|error| format!("Cargo.lock is not understood: {error}"))?;
        let entries = lock.package.into_iter().filter_map(|package| {
            let id = CrateId {
                name: package.name,
                version: package.version,
            };
            Some((id, package.checksum?))
        });
        Ok(Self(entries.collect()))
    }

    pub(super) fn of(&self, id: &CrateId) -> Option<&str> {
        self.0.get(id).map(String::as_str)
    }
}
