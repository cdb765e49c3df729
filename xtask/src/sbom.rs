//! `cargo xtask sbom`: the software bill of materials of the program, in the JSON form of CycloneDX
//! 1.5.
//!
//! It lists the crates that `cargo build -p warmroute` compiles into the program, or runs as macros
//! while it does, for Linux on x86-64 and with the default features; not build scripts, the
//! standard library, and C sources inside crates. It has no time and no random number: equal
//! sources give equal bytes.

mod document;
mod inputs;

use std::{collections::BTreeMap, path::Path, process::Command};

use document::{Component, Origin};
use inputs::{Checksums, CrateId, Graph};

/// The package whose program is described.
const PROGRAM: &str = "warmroute";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Returns the document of the workspace at `root`.
pub(crate) fn sbom(root: &Path) -> Result<String, String> {
    let lock = root.join("Cargo.lock");
    let lock = std::fs::read_to_string(&lock)
        .map_err(|error| format!("{} cannot be read: {error}", lock.display()))?;
    let metadata = cargo(
        root,
        &[
            "metadata",
            "--format-version",
            "1",
            "--filter-platform",
            TARGET,
        ],
    )?;
    let tree = ["tree", "--package", PROGRAM, "--target", TARGET];
    let tree = [
        &tree[..],
        &["--edges", "normal", "--prefix", "none", "--format", "{p}"],
    ]
    .concat();
    let built = inputs::tree(&String::from_utf8_lossy(&cargo(root, &tree)?))?;
    let components = components(
        &Graph::read(&metadata)?,
        &built.into_iter().collect(),
        &Checksums::read(&lock)?,
    )?;
    document::render(PROGRAM, &components)
}

fn cargo(root: &Path, args: &[&str]) -> Result<Vec<u8>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    let command = command.args(args).arg("--locked").current_dir(root);
    let output = command
        .output()
        .map_err(|error| format!("cargo cannot be run: {error}"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("cargo {} fails: {}", args[0], said.trim_end()))
    }
}

/// Joins the sources: `built` selects, since the resolved graph also has what the features of tests
/// and of other programs bring in.
fn components(
    graph: &Graph,
    built: &std::collections::BTreeSet<CrateId>,
    checksums: &Checksums,
) -> Result<Vec<Component>, String> {
    let mut found = BTreeMap::new();
    for package in &graph.packages {
        let id = package.id();
        if !built.contains(&id) {
            continue;
        }
        let origin = match (package.is_local(), checksums.of(&id)) {
            (true, _) => Origin::Workspace,
            (false, Some(sha256)) => Origin::Registry {
                sha256: sha256.to_owned(),
            },
            (false, None) => return Err(format!("{id} has no checksum in Cargo.lock")),
        };
        let needs = graph
            .needs(package)
            .filter(|needed| built.contains(needed))
            .collect();
        let license = package.license.as_deref().map(document::expression);
        let component = Component {
            id: id.clone(),
            license: license.transpose()?,
            origin,
            needs,
        };
        found.insert(id, component);
    }
    match built.iter().find(|id| !found.contains_key(*id)) {
        Some(missing) => Err(format!("cargo metadata does not name {missing}")),
        None => Ok(found.into_values().collect()),
    }
}

#[cfg(test)]
mod tests;
