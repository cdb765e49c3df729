//! Ends a program and all its descendants.

use std::{
    fs,
    process::{Child, Command},
};

/// Kills `child` and its descendants, as far as the system lists them.
pub(super) fn kill(child: &mut Child) {
    let processes = processes();
    let mut family = vec![child.id()];
    let mut at = 0;
    while let Some(parent) = family.get(at).copied() {
        family.extend(
            processes
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(id, _)| *id),
        );
        at += 1;
    }
    let _ = child.kill();
    let ids = family[1..].iter().map(u32::to_string);
    if family.len() > 1 {
        let _ = Command::new("kill").arg("-KILL").args(ids).status();
    }
    let _ = child.wait();
}

/// Returns all processes with their parents; empty without `/proc`.
fn processes() -> Vec<(u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(|id: u32| {
        Some((
            id,
            parent(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)?,
        ))
    })
    .collect()
}

/// Parses `ID (NAME) STATE PARENT ...`; the name may contain spaces and brackets.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent("12 (a) b) (c) S 7 12 12 0 -1"), Some(7));
        assert_eq!(parent(""), None);
    }
}
