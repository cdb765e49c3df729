//! `cargo xtask dependencies`: licences, bans and sources of everything that the workspace builds with, against
//! `deny.toml`.
//!
//! It reads the same file as cargo-deny and checks the same three things, from `cargo metadata` alone, so that it runs
//! wherever the workspace builds. Advisories need a database from the network and are not part of it.

mod metadata;
mod policy;

use std::{fs, path::Path, process::Command};

use metadata::Metadata;
use policy::DenyPolicy;

/// Checks the workspace at `root`; the error has a line for each offending crate.
pub(crate) fn check(root: &Path) -> Result<String, String> {
    let file = root.join("deny.toml");
    let text = fs::read_to_string(&file)
        .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    let policy = DenyPolicy::read(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let metadata = Metadata::read(&of_workspace(root)?)?;
    let problems = problems(&policy, &metadata);
    if problems.is_empty() {
        return Ok(format!(
            "licences, bans and sources of {} crates are as deny.toml says",
            metadata.packages.len()
        ));
    }
    Err(format!(
        "{} problems\n{}",
        problems.len(),
        problems.join("\n")
    ))
}

fn of_workspace(root: &Path) -> Result<Vec<u8>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args([
        "metadata",
        "--locked",
        "--all-features",
        "--format-version",
        "1",
        "--manifest-path",
    ]);
    let output = command.arg(root.join("Cargo.toml")).output();
    let output = output.map_err(|error| format!("cargo metadata cannot be run: {error}"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(format!(
            "cargo metadata fails: {}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        ))
    }
}

/// A line for each crate and rule that it breaks.
fn problems(policy: &DenyPolicy, metadata: &Metadata) -> Vec<String> {
    let mut found = Vec::new();
    for package in &metadata.packages {
        let checks = [
            policy.licenses.problem(package),
            policy.bans.problem(package),
            policy.sources.problem(package),
            policy.bans.wildcard(package),
        ];
        found.extend(
            checks
                .into_iter()
                .flatten()
                .map(|problem| format!("{} {}: {problem}", package.name, package.version)),
        );
    }
    found.extend(policy.licenses.unused_exceptions(metadata));
    found
}

#[cfg(test)]
mod tests;
