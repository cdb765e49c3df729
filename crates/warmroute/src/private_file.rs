//! Files that other users must not read.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Replaces the file at once: a reader sees the old content or the new one, and a crash leaves the
/// old one.
///
/// # Errors
///
/// The file, or one beside it, cannot be written.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let beside = beside(path);
    let written = write_new(&beside, content).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // It holds secrets, too; the first error is the one to report.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Returns a name beside the file that no other process can foresee and prepare.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{:016x}.new", runtime::random()));
    path.with_file_name(name)
}

/// Writes a file that did not exist, neither as a link, nor with other rights.
fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut out = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    out.write_all(content)?;
    out.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_file_or_link_prepared_by_another_user_gets_nothing_of_the_content() {
        let folder = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (
            folder.path().join("a.json"),
            folder.path().join("elsewhere"),
        );
        fs::write(&elsewhere, "kept").unwrap();
        // The name that was written first in earlier releases, and the file itself.
        symlink(&elsewhere, path.with_extension("new")).unwrap();
        symlink(&elsewhere, &path).unwrap();
        replace(&path, b"secret").unwrap();
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "kept");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert!(
            write_new(&path.with_extension("new"), b"").is_err(),
            "a link is not followed"
        );
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        replace(&path, b"secret").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read(&path).unwrap(), b"secret");
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            3,
            "nothing is left beside it"
        );
    }

    #[test]
    fn a_file_that_cannot_be_replaced_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        fs::create_dir(&path).unwrap();
        assert!(replace(&path, b"secret").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn files_that_differ_only_in_their_extension_are_written_apart() {
        let names = ["a.json", "a.yaml"].map(|name| beside(Path::new(name)));
        assert_ne!(names[0], names[1]);
        assert_ne!(beside(Path::new("a.json")), names[0]);
    }
}
