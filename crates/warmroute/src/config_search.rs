//! Where a configuration file is searched if the command line names none: Continuum Router's order.

use std::path::{Path, PathBuf};

use crate::output;

/// File names, in the order of the search within a directory.
const NAMES: [&str; 2] = ["config.yaml", "config.yml"];

/// Returns the first file there is, and names it on stderr. `programs` are the names of the
/// directories of a file that is not in the working directory.
pub(crate) fn announced(programs: &[&str]) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    // A file that cannot be examined is a problem to report, and not one to pass over.
    let found = candidates(home.as_deref(), programs)
        .into_iter()
        .find(|path| path.try_exists().unwrap_or(true))?;
    output::err(&format!("configuration file: {}", found.display()));
    Some(found)
}

/// Returns all paths in the order of the search: working directory, system, user.
fn candidates(home: Option<&Path>, programs: &[&str]) -> Vec<PathBuf> {
    let user = home.map(|home| home.join(".config"));
    let shared = [Some(PathBuf::from("/etc")), user];
    let mut directories = vec![PathBuf::from(".")];
    for directory in shared.into_iter().flatten() {
        directories.extend(programs.iter().map(|program| directory.join(program)));
    }
    directories
        .iter()
        .flat_map(|directory| NAMES.map(|name| directory.join(name)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_searched_in_the_working_directory_then_the_systems_then_the_users() {
        let shown = |home: Option<&str>, programs: &[&str]| -> Vec<String> {
            candidates(home.map(Path::new), programs)
                .iter()
                .map(|path| path.display().to_string())
                .collect()
        };
        assert_eq!(
            shown(Some("/home/me"), &["continuum-router"]),
            [
                "./config.yaml",
                "./config.yml",
                "/etc/continuum-router/config.yaml",
                "/etc/continuum-router/config.yml",
                "/home/me/.config/continuum-router/config.yaml",
                "/home/me/.config/continuum-router/config.yml",
            ]
        );
        let both = shown(None, &["a", "b"]);
        assert_eq!(
            both[2..],
            [
                "/etc/a/config.yaml",
                "/etc/a/config.yml",
                "/etc/b/config.yaml",
                "/etc/b/config.yml"
            ]
        );
    }
}
