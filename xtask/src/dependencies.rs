//! `cargo xtask dependencies`: licences, bans and sources of all dependencies of the workspace,
//! against `deny.toml`.
//!
//! It reads the same file as cargo-deny and makes the same three checks, from `cargo metadata`
//! alone, so it runs wherever the workspace builds. It does not check advisories, which need a
//! database from the network.

mod metadata;
mod policy;

use std::{fs, path::Path, process::Command};

use metadata::Metadata;
use policy::DenyPolicy;

/// Checks the workspace at `root`; the error has one line per violation.
pub(crate) fn check(root: &Path) -> Result<String, String> {
    let file = root.join("deny.toml");
    let text = fs::read_to_string(&file)
        .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    let policy = DenyPolicy::read(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let metadata = Metadata::read(&cargo_metadata(root)?)?;
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

fn cargo_metadata(root: &Path) -> Result<Vec<u8>, String> {
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

/// Returns one line per crate and violated rule.
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
