//! Sources of the configuration.

use std::{path::PathBuf, sync::Arc};

use config::{Override, Problem, Settings};

use super::{members::MemberTable, state_file};
use crate::settings::{self, SettingsInput};

/// All sources, as last read. Comparing two shows whether anything changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SourceTexts {
    path: Option<PathBuf>,
    /// Text of the file.
    text: Option<Arc<str>>,
    env: Arc<Vec<(String, String)>>,
    flags: Arc<Vec<Override>>,
    /// Shared with the history, which stores many of them.
    members: Arc<MemberTable>,
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
        };
        sources.reread()?;
        Ok(sources)
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
            self.text = Some(settings::read(path, &path.display().to_string())?.into());
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
        self.text.as_deref()
    }

    /// Returns the settings that the sources make together.
    pub(crate) fn settings(&self) -> Result<Settings, Vec<Problem>> {
        let name = self.path.as_ref().map_or_else(
            || "configuration".to_owned(),
            |path| path.display().to_string(),
        );
        settings::check(&SettingsInput {
            name: &name,
            text: self.text.as_deref(),
            env: &self.env,
            overrides: &self.flags,
            left_out: &self.members.left_out(),
            more_workers: &self.members.more_workers(),
        })
    }
}
