//! All figures as a table.

use std::fmt::Write;

use super::escaped;
use crate::{CellReport, columns};

/// Renders one row for each cell; times in ms.
pub(super) fn of(cells: &[CellReport]) -> String {
    let mut table = String::from("<div class=\"scroll\"><table><thead><tr>");
    let columns = columns(cells);
    for column in columns {
        let _ = write!(table, "<th>{}</th>", column.name);
    }
    table.push_str("</tr></thead><tbody>\n");
    for cell in cells {
        table.push_str("<tr>");
        for column in columns {
            let _ = write!(table, "<td>{}</td>", escaped(&(column.of)(cell)));
        }
        table.push_str("</tr>\n");
    }
    table.push_str("</tbody></table></div>\n");
    table
}
