//! Output files of a simulation.

use std::{
    fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use simulate::{SimulationReport, html};

/// Destination of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReportOutput {
    /// One JSON object.
    Json(PathBuf),
    /// A page for a browser.
    Html(PathBuf),
    /// Both, in a folder that is created if it does not exist.
    Folder(PathBuf),
}

impl FromStr for ReportOutput {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        match path
            .extension()
            .map(|extension| extension.to_string_lossy().to_ascii_lowercase())
            .as_deref()
        {
            _ if text.is_empty() => Err("expected FILE.json, FILE.html or a folder".to_owned()),
            _ if path.is_dir() || text.ends_with('/') => Ok(Self::Folder(path)),
            Some("json") => Ok(Self::Json(path)),
            Some("html" | "htm") => Ok(Self::Html(path)),
            None => Ok(Self::Folder(path)),
            Some(other) => Err(format!(
                "expected FILE.json, FILE.html or a folder, and .{other} is neither"
            )),
        }
    }
}

impl ReportOutput {
    /// Writes `report` to its destination; returns an error message if that fails.
    pub(super) fn write(&self, report: &SimulationReport) -> Result<(), String> {
        match self {
            Self::Json(path) => write(path, &(json(report) + "\n")),
            Self::Html(path) => write(path, &html::page(report)),
            Self::Folder(path) => {
                fs::create_dir_all(path).map_err(|error| write_error(path, &error))?;
                Self::Json(path.join("report.json")).write(report)?;
                Self::Html(path.join("report.html")).write(report)
            }
        }
    }
}

/// Returns the report as one line of JSON.
pub(super) fn json(report: &SimulationReport) -> String {
    serde_json::to_string(report).unwrap_or_default()
}

/// Writes a file; returns an error message if that fails.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| write_error(path, &error))
}

fn write_error(path: &Path, error: &io::Error) -> String {
    format!("{} cannot be written: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_says_what_is_written() {
        assert_eq!("a.json".parse(), Ok(ReportOutput::Json("a.json".into())));
        assert_eq!(
            "a.b.HTML".parse(),
            Ok(ReportOutput::Html("a.b.HTML".into()))
        );
        assert_eq!(
            "reports".parse(),
            Ok(ReportOutput::Folder("reports".into()))
        );
        assert_eq!(
            "reports.json/".parse(),
            Ok(ReportOutput::Folder("reports.json/".into()))
        );
        let refused = "a.pdf".parse::<ReportOutput>().unwrap_err();
        assert_eq!(
            refused,
            "expected FILE.json, FILE.html or a folder, and .pdf is neither"
        );
        assert!("".parse::<ReportOutput>().is_err());
    }
}
