//! Charts as SVG.

use std::fmt::Write;

use super::{MOST_WORKERS, escaped};
use crate::CellReport;

const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 220.0;
/// Space for the numbers at the left, the names below, and the values above the bars.
const LEFT: f64 = 52.0;
const BELOW: f64 = 22.0;
const ABOVE: f64 = 16.0;
/// Share of a group's width that is left free beside its bars.
const GAP: f64 = 0.2;
/// Least width of a bar with a number above it.
const LEAST_LABELLED: f64 = 26.0;
/// Least distance between engines' names.
const LEAST_NAMED: f64 = 22.0;
/// Colours of computed and of cached tokens, distinct from every policy's.
pub(super) const COMPUTED: &str = "#a0672f";
pub(super) const FOUND: &str = "#8aa4bd";
/// Approximate number of horizontal lines, with numbers beside them.
const LINES: f64 = 4.0;

/// A chart of bars in groups.
pub(super) struct Bars<'a> {
    pub(super) title: &'static str,
    /// The value at the foot of the bars.
    pub(super) from: f64,
    pub(super) groups: &'a [BarGroup],
    /// Names of the bars, by index.
    pub(super) names: &'a [&'static str],
}

/// One group of bars.
pub(super) struct BarGroup {
    pub(super) name: String,
    /// The index of each bar's name, and its value.
    pub(super) bars: Vec<(usize, f64)>,
}

/// One bar of a drawing, between two values.
#[derive(Clone, Copy)]
struct Bar {
    x: f64,
    width: f64,
    from: f64,
    to: f64,
}

/// Returns the colour of an index, far from that of the index before.
pub(crate) fn colour(index: usize) -> String {
    format!("hsl({} 60% 54%)", (205 + index * 137) % 360)
}

impl Bars<'_> {
    pub(super) fn drawn(&self) -> String {
        let values = self
            .groups
            .iter()
            .flat_map(|group| group.bars.iter().map(|(_, value)| *value));
        let mut drawing = Drawing::new(self.title, self.from, values.fold(self.from, f64::max));
        let slot = (WIDTH - LEFT) / self.groups.len().max(1) as f64;
        for (index, group) in self.groups.iter().enumerate() {
            let left = LEFT + slot * index as f64;
            let width = slot * (1.0 - GAP) / group.bars.len().max(1) as f64;
            for (number, (name, value)) in group.bars.iter().enumerate() {
                let x = left + slot * GAP / 2.0 + width * number as f64;
                let tooltip = format!("{}, {}: {}", self.names[*name], group.name, short(*value));
                let bar = Bar {
                    x,
                    width,
                    from: self.from,
                    to: *value,
                };
                drawing.bar(bar, &colour(*name), &tooltip);
                if width >= LEAST_LABELLED {
                    drawing.text(
                        x + width / 2.0,
                        drawing.y(*value) - 3.0,
                        "middle",
                        &short(*value),
                    );
                }
            }
            drawing.text(left + slot / 2.0, HEIGHT - 6.0, "middle", &group.name);
        }
        drawing.done()
    }
}

/// Draws a bar for each engine of a cell: computed tokens, and cached ones on top.
pub(super) fn stacked(title: &str, cell: &CellReport) -> String {
    let shown = &cell.per_worker[..cell.per_worker.len().min(MOST_WORKERS)];
    let most = shown
        .iter()
        .map(|worker| worker.computed_tokens + worker.hit_tokens)
        .max()
        .unwrap_or(0);
    let mut drawing = Drawing::new(title, 0.0, most as f64);
    let slot = (WIDTH - LEFT) / shown.len().max(1) as f64;
    // Where engines are too close for a name each, some have none.
    let every = [1, 2, 5, 10]
        .into_iter()
        .find(|every| slot * *every as f64 >= LEAST_NAMED)
        .unwrap_or(20);
    for (index, worker) in shown.iter().enumerate() {
        let (computed, hits) = (worker.computed_tokens as f64, worker.hit_tokens as f64);
        let (x, width) = (LEFT + slot * (index as f64 + GAP / 2.0), slot * (1.0 - GAP));
        let name = format!("w{}", index + 1);
        let tooltip = format!(
            "{name}: {} tokens computed, {} requests",
            short(computed),
            worker.requests
        );
        let below = Bar {
            x,
            width,
            from: 0.0,
            to: computed,
        };
        drawing.bar(below, COMPUTED, &tooltip);
        let tooltip = format!("{name}: {} tokens found", short(hits));
        let above = Bar {
            from: computed,
            to: computed + hits,
            ..below
        };
        drawing.bar(above, FOUND, &tooltip);
        if index % every == 0 {
            drawing.text(x + width / 2.0, HEIGHT - 6.0, "middle", &name);
        }
    }
    drawing.done()
}

/// A chart in progress.
struct Drawing {
    svg: String,
    from: f64,
    to: f64,
}

impl Drawing {
    /// Starts an empty chart for values in this range, with its lines.
    fn new(title: &str, from: f64, most: f64) -> Self {
        let svg = format!(
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             role=\"img\">",
            escaped(title)
        );
        // Without a value above the foot, any range will do.
        let rise = if most > from && most.is_finite() {
            most - from
        } else {
            1.0
        };
        let step = round_step(rise / LINES);
        let lines = (rise / step).ceil();
        let mut drawing = Self {
            svg,
            from,
            to: from + step * lines,
        };
        let mut line = 0.0;
        while line <= lines {
            let value = from + step * line;
            line += 1.0;
            let y = drawing.y(value);
            let _ = write!(
                drawing.svg,
                "<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#8885\"/>"
            );
            drawing.text(LEFT - 5.0, y + 4.0, "end", &on_axis(value));
        }
        drawing
    }

    fn y(&self, value: f64) -> f64 {
        let share = ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        HEIGHT - BELOW - share * (HEIGHT - BELOW - ABOVE)
    }

    /// Draws a bar, with a tooltip.
    fn bar(&mut self, bar: Bar, colour: &str, tooltip: &str) {
        let Bar { x, width, from, to } = bar;
        let (top, foot) = (self.y(to), self.y(from));
        let (height, tooltip) = (foot - top, escaped(tooltip));
        let _ = write!(
            self.svg,
            "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"><title>{tooltip}</title>\
             </rect>"
        );
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        let text = escaped(text);
        let _ = write!(
            self.svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn done(self) -> String {
        self.svg + "</svg></figure>\n"
    }
}

/// Returns the smallest of 1, 2 and 5, times a power of ten, that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|step| *step >= least)
        .unwrap_or(10.0 * power)
}

/// Formats a round number in full, unless it is long.
fn on_axis(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    if value.abs() < 1e4 {
        rounded.to_string()
    } else {
        short(value)
    }
}

/// Formats a number in few characters.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e7 => format!("{:.0}M", value / 1e6),
        size if size >= 1e6 => format!("{:.1}M", value / 1e6),
        size if size >= 1e4 => format!("{:.0}k", value / 1e3),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_briefly() {
        let shown = [
            0.0,
            1.075,
            24.31,
            340.2,
            4_321.0,
            43_210.0,
            1_234_567.0,
            98_765_432.0,
        ]
        .map(short);
        assert_eq!(
            shown,
            ["0.00", "1.07", "24.3", "340", "4321", "43k", "1.2M", "99M"]
        );
    }

    #[test]
    fn grid_lines_are_at_round_numbers_and_the_last_is_above_every_bar() {
        assert_eq!(
            [0.3, 1.0, 1.1, 34.2, 4_999.0].map(round_step),
            [0.5, 1.0, 2.0, 50.0, 5_000.0]
        );
        let lines = |most| {
            let drawn = Drawing::new("T", 1.0, most).done();
            drawn
                .split("</text>")
                .filter_map(|part| Some(part.rsplit_once('>')?.1.to_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(lines(1.2)[..5], ["1", "1.05", "1.1", "1.15", "1.2"]);
        assert_eq!(lines(132.0)[..4], ["1", "51", "101", "151"]);
    }

    #[test]
    fn the_highest_bar_fills_the_chart_and_nan_is_harmless() {
        let groups = [BarGroup {
            name: "load 0.3".to_owned(),
            bars: vec![(0, 5.0), (1, 10.0), (1, f64::NAN)],
        }];
        let drawn = Bars {
            title: "T",
            from: 0.0,
            groups: &groups,
            names: &["a", "b<"],
        }
        .drawn();
        let full = HEIGHT - BELOW - ABOVE;
        assert!(drawn.contains(&format!("height=\"{full:.1}\"")), "{drawn}");
        assert!(
            drawn.contains(&format!("height=\"{:.1}\"", full / 2.0)),
            "{drawn}"
        );
        assert!(
            drawn.contains("<title>b&lt;, load 0.3: 10.0</title>"),
            "{drawn}"
        );
        assert_eq!(drawn.matches("<rect").count(), 3);
    }
}
