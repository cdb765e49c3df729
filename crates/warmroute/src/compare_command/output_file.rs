//! Output files of a table.

use std::{
    fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use simulate::ComparisonReport;

use crate::simulate_command::write;

/// Names of the files in a folder.
const FILES: [&str; 3] = ["comparison.md", "comparison.json", "comparison.svg"];

/// Destination of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ComparisonOutput {
    /// A table in Markdown.
    Markdown(PathBuf),
    /// One JSON object.
    Json(PathBuf),
    /// A drawing.
    Svg(PathBuf),
    /// All three, in a folder that is created if it does not exist.
    Folder(PathBuf),
}

impl FromStr for ComparisonOutput {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = PathBuf::from(text);
        if text.is_empty() {
            return Err("expected FILE.md, FILE.json, FILE.svg or a folder".to_owned());
        }
        if path.is_dir() || text.ends_with('/') {
            return Ok(Self::Folder(path));
        }
        let ending = path
            .extension()
            .map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        match ending.as_deref() {
            None => Ok(Self::Folder(path)),
            Some("md") => Ok(Self::Markdown(path)),
            Some("json") => Ok(Self::Json(path)),
            Some("svg") => Ok(Self::Svg(path)),
            Some(other) => Err(format!(
                "expected FILE.md, FILE.json, FILE.svg or a folder, and .{other} is none of them"
            )),
        }
    }
}

impl ComparisonOutput {
    /// Writes `report` to its destination; returns an error message if that fails.
    pub(super) fn write(&self, report: &ComparisonReport) -> Result<(), String> {
        match self {
            Self::Markdown(path) => write(path, &report.markdown()),
            Self::Json(path) => write(path, &(json(report) + "\n")),
            Self::Svg(path) => write(path, &report.plot()),
            Self::Folder(path) => Self::write_folder(path, report),
        }
    }

    fn write_folder(folder: &Path, report: &ComparisonReport) -> Result<(), String> {
        fs::create_dir_all(folder)
            .map_err(|error| format!("{} cannot be written: {error}", folder.display()))?;
        let [markdown, json, svg] = FILES.map(|file| folder.join(file));
        [Self::Markdown(markdown), Self::Json(json), Self::Svg(svg)]
            .iter()
            .try_for_each(|file| file.write(report))
    }
}

/// Returns the report as one line of JSON.
pub(super) fn json(report: &ComparisonReport) -> String {
    serde_json::to_string(report).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_says_what_is_written() {
        let path = PathBuf::from;
        assert_eq!("a.MD".parse(), Ok(ComparisonOutput::Markdown(path("a.MD"))));
        assert_eq!("a.json".parse(), Ok(ComparisonOutput::Json(path("a.json"))));
        assert_eq!("a.svg".parse(), Ok(ComparisonOutput::Svg(path("a.svg"))));
        assert_eq!("out".parse(), Ok(ComparisonOutput::Folder(path("out"))));
        assert_eq!(
            "out.md/".parse(),
            Ok(ComparisonOutput::Folder(path("out.md/")))
        );
        assert_eq!(
            "a.html".parse::<ComparisonOutput>().unwrap_err(),
            "expected FILE.md, FILE.json, FILE.svg or a folder, and .html is none of them"
        );
        assert!("".parse::<ComparisonOutput>().is_err());
    }
}
