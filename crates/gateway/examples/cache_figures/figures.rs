//! One line of the table.

use std::fmt;

/// A figure and the most that it may be.
#[derive(Clone, Debug)]
pub(crate) struct BoundedFigure {
    /// The promise, by its id.
    pub(crate) contract: &'static str,
    pub(crate) what: String,
    pub(crate) measured: f64,
    pub(crate) at_most: f64,
    pub(crate) unit: &'static str,
}

impl BoundedFigure {
    pub(crate) fn is_within_bound(&self) -> bool {
        self.measured <= self.at_most
    }
}

impl fmt::Display for BoundedFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            contract,
            what,
            measured,
            at_most,
            unit,
        } = self;
        let number = |value: f64| {
            let decimals = if value == 0.0 || value >= 100.0 { 0 } else { 3 };
            format!("{value:.decimals$} {unit}")
        };
        let remark = if self.is_within_bound() {
            ""
        } else {
            "  NOT KEPT"
        };
        write!(
            f,
            "{contract:<6} {what:<66} {:>14} {:>14}{remark}",
            number(*measured),
            number(*at_most)
        )
    }
}
