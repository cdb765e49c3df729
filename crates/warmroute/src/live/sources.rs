//! Sources of the configuration.

use std::{path::PathBuf, sync::Arc};

use config::{Override, Problem, Settings};
use tenants::ListedKeys;
use zeroize::Zeroizing;

use super::{file_watch::FileVersion, members::MemberTable, state_file};
use crate::settings::{self, SettingsInput};

/// All sources, as last read. Comparing two shows whether anything changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SourceTexts {
    path: Option<PathBuf>,
    /// Text of the file, with the keys in it: overwritten when its last owner drops it.
    text: Option<Arc<Zeroizing<String>>>,
    env: Arc<Vec<(String, String)>>,
    flags: Arc<Vec<Override>>,
    /// Shared with the history, which stores many of them.
    members: Arc<MemberTable>,
    /// The keys of the file that the settings name.
    keys: ListedKeys,
    /// The version that this file had before they were read, and its path.
    keys_version: Option<(FileVersion, PathBuf)>,
}

impl SourceTexts {
    /// Reads the file of this path now; environment and flags are given.
    pub(crate) fn read(
        path: Option<PathBuf>,
        env: Vec<(String, String)>,
        flags: Vec<Override>,
    ) -> Result<Self, Vec<Problem>> {
        let (env, flags) = (Arc::new(env), Arc::new(flags));
        let mut sources = Self {
            path,
            text: None,
            env,
            flags,
            members: Arc::default(),
            keys: ListedKeys::default(),
            keys_version: None,
        };
        sources.reread()?;
        Ok(sources)
    }

    /// Returns sources without a file: a program has the text in memory.
    pub(crate) fn of_text(
        text: Option<String>,
        env: Vec<(String, String)>,
        flags: Vec<Override>,
    ) -> Self {
        Self {
            text: text.map(|text| Arc::new(Zeroizing::new(text))),
            env: Arc::new(env),
            flags: Arc::new(flags),
            ..Self::default()
        }
    }

    /// Loads the workers of the state file, which the settings of the file name.
    pub(crate) fn remember(&mut self, settings: &Settings) -> Result<(), Vec<Problem>> {
        let Some(path) = &settings.discovery.state_file else {
            return Ok(());
        };
        let members = state_file::read(path).map_err(|message| {
            let problem = Problem::bad_value(
                "discovery.state_file",
                &path.display().to_string(),
                &message,
            );
            vec![settings.locate(problem)]
        })?;
        self.members = Arc::new(members);
        Ok(())
    }

    /// Reads the file again.
    pub(super) fn reread(&mut self) -> Result<(), Vec<Problem>> {
        if let Some(path) = &self.path {
            let text = settings::read(path, &path.display().to_string())?;
            self.text = Some(Arc::new(text));
        }
        Ok(())
    }

    pub(super) fn members(&self) -> &MemberTable {
        &self.members
    }

    pub(super) fn members_mut(&mut self) -> &mut MemberTable {
        Arc::make_mut(&mut self.members)
    }

    /// Returns the path of the file, if there is one.
    pub(super) fn path(&self) -> Option<&PathBuf> {
        self.path.as_ref()
    }

    /// Returns the file's text, as last read.
    pub(super) fn text(&self) -> Option<&str> {
        self.text.as_ref().map(|text| text.as_str())
    }

    /// Returns the version of the file of keys that was read last, and the file's path.
    pub(super) fn keys_version(&self) -> Option<(FileVersion, PathBuf)> {
        self.keys_version.clone()
    }

    /// Returns the sources without the keys of the file, for the history: it is read again when they
    /// are applied.
    pub(super) fn without_keys(&self) -> Self {
        Self {
            keys: ListedKeys::default(),
            ..self.clone()
        }
    }

    /// Reads the file of keys again, and returns the settings.
    pub(crate) fn settings_with_keys(&mut self) -> Result<Settings, Vec<Problem>> {
        let mut settings = self.settings()?;
        let tenants = &mut settings.tenants;
        let path = tenants.keys_file.as_ref();
        let version = path.and_then(|path| Some((FileVersion::of(path)?, path.clone())));
        let listed = match path {
            Some(path) => {
                let name = path.display().to_string();
                let text = settings::read(path, &name)?;
                config::keys_file(&text, &name, &tenants.api_keys)?
            }
            None => ListedKeys::default(),
        };
        // An unchanged file leaves what is known, so that copies stay one list.
        tenants.listed = if listed == self.keys {
            self.keys.clone()
        } else {
            listed
        };
        config::check_listed_tenants(&settings, &self.name())?;
        self.keys = settings.tenants.listed.clone();
        self.keys_version = version;
        Ok(settings)
    }

    /// Returns the name of the file in problems.
    fn name(&self) -> String {
        self.path.as_ref().map_or_else(
            || "configuration".to_owned(),
            |path| path.display().to_string(),
        )
    }

    /// Returns the settings that the sources make together.
    pub(crate) fn settings(&self) -> Result<Settings, Vec<Problem>> {
        let name = self.name();
        let mut settings = settings::check(&SettingsInput {
            name: &name,
            text: self.text(),
            env: &self.env,
            overrides: &self.flags,
            left_out: &self.members.left_out(),
            more_workers: &self.members.more_workers(),
        })?;
        settings.tenants.listed = self.keys.clone();
        Ok(settings)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        fs::{self, File},
        os::unix::fs::FileExt as _,
    };

    use contract_id::contract;

    use super::*;

    /// Returns this process's memory at the address, as the kernel sees it.
    fn memory(address: usize, bytes: usize) -> Vec<u8> {
        let mut seen = vec![0; bytes];
        let memory = File::open("/proc/self/mem").expect("a process can read its memory");
        match memory.read_exact_at(&mut seen, address as u64) {
            Ok(()) => seen,
            // The allocator gave the page back.
            Err(_) => Vec::new(),
        }
    }

    #[test]
    #[contract("V32")]
    fn a_file_of_keys_that_changes_after_it_was_read_has_another_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warmroute.yaml");
        let keys = folder.path().join("keys.jsonl");
        let text = format!("tenants: {{keys_file: {}}}\n", keys.display());
        fs::write(&path, text).unwrap();
        fs::write(&keys, "").unwrap();
        let version = || FileVersion::of(&keys).map(|version| (version, keys.clone()));
        let mut sources = SourceTexts::read(Some(path), Vec::new(), Vec::new()).unwrap();
        assert_eq!(sources.keys_version(), None);
        sources.settings_with_keys().unwrap();
        assert_eq!(sources.keys_version(), version());
        fs::write(&keys, "# a comment\n").unwrap();
        assert_ne!(sources.keys_version(), version());
    }

    #[test]
    #[contract("S81")]
    fn the_memory_of_a_dropped_configuration_no_longer_holds_its_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("warmroute.yaml");
        let key: String = (b'a'..=b'z').cycle().take(512).map(char::from).collect();
        let text = format!("workers: [] # {key}");
        fs::write(&path, &text).unwrap();
        let sources = SourceTexts::read(Some(path.clone()), Vec::new(), Vec::new()).unwrap();
        let kept = sources.without_keys();
        let place = sources.text().unwrap().as_ptr().addr();
        drop(sources);
        let of_history = memory(place, text.len());
        assert_eq!(of_history, text.as_bytes(), "the control");
        drop(kept);
        let after = memory(place, text.len());
        let tail = &key.as_bytes()[256..];
        assert!(
            !after.ends_with(tail),
            "{}",
            String::from_utf8_lossy(&after)
        );
    }
}
