//! File that stores the workers added and removed by operators, over a restart.

use std::{fs, io, path::Path};

use serde::{Deserialize, Serialize};

use super::members::MemberTable;
use crate::private_file;

/// Schema name in the file.
const SCHEMA: &str = "warmroute.state/1";

#[derive(Serialize, Deserialize)]
struct StateFile {
    schema: String,
    #[serde(flatten)]
    members: MemberTable,
}

/// Reads the file; empty if there is none yet.
pub(super) fn read(path: &Path) -> Result<MemberTable, String> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(MemberTable::default()),
        Err(error) => return Err(format!("the file cannot be read: {error}")),
    };
    let file: StateFile = serde_json::from_str(&text).map_err(|error| {
        format!("the file is no state of a router ({error}): remove it, or give another path")
    })?;
    if file.schema != SCHEMA {
        return Err(format!(
            "the file is {:?}, expected {SCHEMA}: remove it, or give another path",
            file.schema
        ));
    }
    Ok(file.members)
}

/// Replaces the file. It may hold keys of workers: other users must not read it.
pub(super) fn write(path: &Path, members: &MemberTable) -> io::Result<()> {
    let file = StateFile {
        schema: SCHEMA.to_owned(),
        members: members.lasting(),
    };
    let text = serde_json::to_vec_pretty(&file).map_err(io::Error::other)?;
    private_file::replace(path, &text)
}
