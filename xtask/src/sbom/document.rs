//! The document in CycloneDX's JSON form.

use std::collections::BTreeSet;

use serde::Serialize;
use spdx::Expression;

use super::inputs::CrateId;

/// A crate of the program.
#[derive(Debug)]
pub(super) struct Component {
    pub(super) id: CrateId,
    /// An SPDX expression.
    pub(super) license: Option<String>,
    pub(super) origin: Origin,
    pub(super) needs: Vec<CrateId>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// This repository. Such a crate has no package URL: the registry has other crates of these
    /// names.
    Workspace,
    /// The registry, with the SHA-256 of the crate's archive.
    Registry { sha256: String },
}

/// Returns a licence as SPDX writes it; crates also write `MIT/Apache-2.0`.
pub(super) fn expression(license: &str) -> Result<String, String> {
    let refused = |error: spdx::ParseError| {
        format!(
            "the licence `{license}` is no SPDX expression: {}",
            error.reason
        )
    };
    let fixed = Expression::canonicalize(license).map_err(refused)?;
    Ok(fixed.unwrap_or_else(|| license.to_owned()))
}

/// The document; the order of its fields is that of the text.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    bom_format: &'static str,
    spec_version: &'static str,
    version: u32,
    metadata: Metadata,
    components: Vec<Entry>,
    dependencies: Vec<Needs>,
}

#[derive(Debug, Serialize)]
struct Metadata {
    component: Entry,
}

#[derive(Debug, Serialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(rename = "bom-ref")]
    reference: String,
    name: String,
    version: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    licenses: Vec<License>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hashes: Vec<Hash>,
    #[serde(skip_serializing_if = "Option::is_none")]
    purl: Option<String>,
}

#[derive(Debug, Serialize)]
struct License {
    expression: String,
}

#[derive(Debug, Serialize)]
struct Hash {
    alg: &'static str,
    content: String,
}

#[derive(Debug, Serialize)]
struct Needs {
    #[serde(rename = "ref")]
    reference: String,
    #[serde(rename = "dependsOn")]
    needs: BTreeSet<String>,
}

/// Renders the document about the program of the package `program`.
pub(super) fn render(program: &str, components: &[Component]) -> Result<String, String> {
    let is_program = |component: &&Component| {
        component.id.name == program && component.origin == Origin::Workspace
    };
    let subject = components
        .iter()
        .find(is_program)
        .ok_or_else(|| format!("{program} is not among its own crates"))?;
    let libraries = components.iter().filter(|it| !is_program(it));
    let document = Document {
        bom_format: "CycloneDX",
        spec_version: "1.5",
        version: 1,
        metadata: Metadata {
            component: subject.entry("application"),
        },
        components: libraries.map(|it| it.entry("library")).collect(),
        dependencies: components.iter().map(|it| it.needs(components)).collect(),
    };
    serde_json::to_string_pretty(&document)
        .map(|text| text + "\n")
        .map_err(|error| format!("the document cannot be written: {error}"))
}

impl Component {
    fn reference(&self) -> String {
        let CrateId { name, version } = &self.id;
        match self.origin {
            Origin::Workspace => format!("workspace:{name}@{version}"),
            Origin::Registry { .. } => self.package_url(),
        }
    }

    fn package_url(&self) -> String {
        // Build metadata (`+`) is the only part of a version that a package URL escapes.
        let version = self.id.version.replace('+', "%2B");
        format!("pkg:cargo/{}@{version}", self.id.name)
    }

    fn entry(&self, kind: &'static str) -> Entry {
        let sha256 = match &self.origin {
            Origin::Workspace => None,
            Origin::Registry { sha256 } => Some(sha256.clone()),
        };
        let license = self.license.clone();
        Entry {
            kind,
            reference: self.reference(),
            name: self.id.name.clone(),
            version: self.id.version.clone(),
            licenses: license
                .map(|expression| License { expression })
                .into_iter()
                .collect(),
            purl: sha256.is_some().then(|| self.package_url()),
            hashes: sha256
                .map(|content| Hash {
                    alg: "SHA-256",
                    content,
                })
                .into_iter()
                .collect(),
        }
    }

    fn needs(&self, all: &[Self]) -> Needs {
        let reference = |id: &CrateId| {
            let found = all.iter().find(|component| component.id == *id);
            found.map(Self::reference)
        };
        Needs {
            reference: self.reference(),
            needs: self.needs.iter().filter_map(reference).collect(),
        }
    }
}
