//! Small charts with logarithmic axes, as SVG.

use std::fmt::Write;

/// Points in the order of `x`; all numbers above 0.
#[derive(Debug)]
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) points: Vec<(f64, f64)>,
}

#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    pub(crate) series: Vec<Series>,
}

// Pixels.
const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 55.0;

const COLOURS: [&str; 3] = ["#c0392b", "#2471a3", "#1e8449"];

/// A logarithmic axis from one pixel to another.
#[derive(Debug)]
struct Axis {
    from: f64,
    to: f64,
    pixels: (f64, f64),
}

impl Axis {
    /// Wide enough for all values, with a bit of room around them.
    fn of(values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let (least, most) = values.fold((f64::INFINITY, 0.0_f64), |(least, most), v| {
            (least.min(v), most.max(v))
        });
        Self {
            from: least / 1.3,
            to: most * 1.3,
            pixels,
        }
    }

    fn pixel(&self, value: f64) -> f64 {
        let share = (value / self.from).ln() / (self.to / self.from).ln();
        self.pixels.0 + share * (self.pixels.1 - self.pixels.0)
    }

    /// Powers of ten; with numbers in between where there are few.
    fn ticks(&self) -> Vec<f64> {
        let steps: &[f64] = match (self.to / self.from).log10() {
            ..1.2 => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
            ..3.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let powers = (-3..13).map(|power| 10_f64.powi(power));
        let all = powers.flat_map(|power| steps.iter().map(move |step| step * power));
        all.filter(|tick| (self.from..=self.to).contains(tick))
            .collect()
    }
}

/// The charts side by side.
pub(crate) fn draw(charts: &[Chart]) -> String {
    let width: f64 = charts.iter().map(|_| WIDTH).sum();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{width}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    let mut at = 0.0;
    for chart in charts {
        let _ = writeln!(svg, "<g transform=\"translate({at} 0)\">");
        draw_one(&mut svg, chart);
        svg.push_str("</g>\n");
        at += WIDTH;
    }
    svg.push_str("</svg>\n");
    svg
}

fn draw_one(svg: &mut String, chart: &Chart) {
    let points = || chart.series.iter().flat_map(|series| &series.points);
    let x = Axis::of(points().map(|point| point.0), (LEFT, WIDTH - RIGHT));
    let y = Axis::of(points().map(|point| point.1), (HEIGHT - BOTTOM, TOP));
    let (left, right, top, bottom) = (LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM);
    let middle = f64::midpoint(left, right);
    let mut put = |line: String| {
        svg.push_str(&line);
        svg.push('\n');
    };
    put(text(
        middle,
        22.0,
        "middle",
        &format!("<tspan font-weight=\"bold\">{}</tspan>", chart.title),
    ));
    put(text(middle, HEIGHT - 14.0, "middle", &chart.x));
    let upright = f64::midpoint(top, bottom);
    put(format!(
        "<text transform=\"translate(16 {upright}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        chart.y
    ));
    for tick in x.ticks() {
        let at = x.pixel(tick);
        put(line((at, top), (at, bottom), "#ddd"));
        put(text(at, bottom + 18.0, "middle", &label(tick)));
    }
    for tick in y.ticks() {
        let at = y.pixel(tick);
        put(line((left, at), (right, at), "#ddd"));
        put(text(left - 6.0, at + 4.0, "end", &label(tick)));
    }
    put(line((left, top), (left, bottom), "#444"));
    put(line((left, bottom), (right, bottom), "#444"));
    let mut names = Vec::new();
    for (series, colour) in chart.series.iter().zip(COLOURS) {
        let pixels: Vec<_> = series
            .points
            .iter()
            .map(|(at, value)| (x.pixel(*at), y.pixel(*value)))
            .collect();
        let path: Vec<_> = pixels
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        put(format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        ));
        for (x, y) in &pixels {
            put(format!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
            ));
        }
        names.extend(pixels.last().map(|(_, y)| (*y, series.name, colour)));
    }
    // Names stand at the ends of their lines, not on top of each other.
    names.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut free = top;
    for (at, name, colour) in names {
        let at = at.max(free);
        free = at + 15.0;
        put(text(
            right + 8.0,
            at + 4.0,
            "start",
            &format!("<tspan fill=\"{colour}\">{name}</tspan>"),
        ));
    }
}

fn text(x: f64, y: f64, anchor: &str, content: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{content}</text>")
}

fn line(from: (f64, f64), to: (f64, f64), colour: &str) -> String {
    let ((x1, y1), (x2, y2)) = (from, to);
    format!(
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
    )
}

/// A number as short as it can be read: `20k`, `1M`.
fn label(value: f64) -> String {
    match value {
        1e9.. => format!("{}G", value / 1e9),
        1e6.. => format!("{}M", value / 1e6),
        1e3.. => format!("{}k", value / 1e3),
        _ => format!("{}", (value * 1e3).round() / 1e3),
    }
}
