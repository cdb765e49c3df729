//! `deny.toml`: allowed licences, crates and sources.
//!
//! The keys are cargo-deny's. An unknown key is an error, so that no entry is silently ignored;
//! only `[advisories]` is left to cargo-deny.

use serde::Deserialize;
use spdx::{Expression, ParseMode};

use super::metadata::{Metadata, Package};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DenyPolicy {
    #[serde(rename = "graph")]
    _graph: Graph,
    #[serde(rename = "advisories")]
    _advisories: toml::Table,
    pub(super) licenses: Licenses,
    pub(super) bans: Bans,
    pub(super) sources: Sources,
}

impl DenyPolicy {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let policy: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        Ok(policy)
    }
}

/// A key with a single implemented value.
macro_rules! only {
    ($name:ident, $value:literal) => {
        #[derive(Debug, Deserialize)]
        enum $name {
            #[serde(rename = $value)]
            Only,
        }
    };
}

only!(Deny, "deny");
only!(Warn, "warn");
only!(Allow, "allow");

/// The value `true` only.
#[derive(Debug, Deserialize)]
#[serde(try_from = "bool")]
struct True;

impl TryFrom<bool> for True {
    type Error = &'static str;

    fn try_from(value: bool) -> Result<Self, Self::Error> {
        value.then_some(Self).ok_or("only true is implemented")
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Graph {
    #[serde(rename = "all-features")]
    _all_features: True,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Licenses {
    #[serde(rename = "version")]
    _version: u8,
    #[serde(rename = "unused-allowed-license")]
    _unused: Allow,
    #[serde(rename = "private")]
    _private: PrivatePackages,
    allow: Vec<String>,
    #[serde(default)]
    pub(super) exceptions: Vec<LicenseException>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrivatePackages {
    #[serde(rename = "ignore")]
    _ignore: True,
}

/// Additional licences that one crate may have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LicenseException {
    #[serde(rename = "crate")]
    pub(super) name: String,
    pub(super) allow: Vec<String>,
}

impl Licenses {
    /// Returns the violation of a package whose licences are not allowed.
    pub(super) fn problem(&self, package: &Package) -> Option<String> {
        if package.is_private() {
            return None;
        }
        let Some(license) = &package.license else {
            return Some(
                "its manifest names no licence: look at its licence file, and add an exception"
                    .to_owned(),
            );
        };
        let expression = match Expression::parse_mode(license, ParseMode::LAX) {
            Ok(expression) => expression,
            Err(error) => {
                return Some(format!(
                    "the licence `{license}` is no SPDX expression: {}",
                    error.reason
                ));
            }
        };
        let exceptions = self
            .exceptions
            .iter()
            .filter(|exception| exception.name == package.name);
        let allowed: Vec<&String> = self
            .allow
            .iter()
            .chain(exceptions.flat_map(|exception| &exception.allow))
            .collect();
        let fits = expression
            .evaluate(|required| allowed.iter().any(|name| **name == required.to_string()));
        (!fits).then(|| format!("the licence `{license}` is not allowed by licenses.allow"))
    }

    /// Returns exceptions for crates that are not used.
    pub(super) fn unused_exceptions<'a>(
        &'a self,
        metadata: &'a Metadata,
    ) -> impl Iterator<Item = String> + 'a {
        let is_there = |name: &str| metadata.packages.iter().any(|package| package.name == name);
        let unused = self
            .exceptions
            .iter()
            .filter(move |exception| !is_there(&exception.name));
        unused.map(|exception| {
            format!(
                "{}: licenses.exceptions names it, and nothing depends on it",
                exception.name
            )
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Bans {
    #[serde(rename = "multiple-versions")]
    _multiple_versions: Warn,
    #[serde(rename = "wildcards")]
    _wildcards: Deny,
    #[serde(rename = "allow-wildcard-paths")]
    _allow_wildcard_paths: True,
    deny: Vec<Ban>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

impl Bans {
    /// Returns the violation of a banned package.
    pub(super) fn problem(&self, package: &Package) -> Option<String> {
        let ban = self.deny.iter().find(|ban| ban.name == package.name)?;
        Some(format!(
            "banned by bans.deny: {} (`cargo tree -i {}` says who wants it)",
            ban.reason, package.name
        ))
    }

    /// Returns the violation of a crate of this workspace that accepts any version of a dependency.
    pub(super) fn wildcard(&self, package: &Package) -> Option<String> {
        let any = |required: &&super::metadata::Dependency| {
            required.req == "*" && required.path.is_none()
        };
        let dependency = package
            .dependencies
            .iter()
            .find(any)
            .filter(|_| package.source.is_none())?;
        Some(format!(
            "takes any version of {}: name one",
            dependency.name
        ))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct Sources {
    #[serde(rename = "unknown-registry")]
    _unknown_registry: Deny,
    #[serde(rename = "unknown-git")]
    _unknown_git: Deny,
    allow_registry: Vec<String>,
}

impl Sources {
    /// Returns the violation of a package from another source.
    pub(super) fn problem(&self, package: &Package) -> Option<String> {
        let source = package.source.as_deref()?;
        let is_known = self
            .allow_registry
            .iter()
            .any(|url| source.strip_prefix("registry+") == Some(url.as_str()));
        (!is_known)
            .then(|| format!("comes from {source}, which sources.allow-registry does not name"))
    }
}
