//! A strict reader of OpenMetrics text.

use std::collections::{BTreeMap, BTreeSet};

/// A complete page.
#[derive(Debug)]
pub struct Page {
    /// The type of each family, by name.
    pub families: BTreeMap<String, String>,
    pub samples: Vec<MetricSample>,
}

/// One sample.
#[derive(Debug)]
pub struct MetricSample {
    pub family: String,
    /// The name with its suffix.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Page {
    /// Parses a page and panics where a strict scraper would refuse it.
    pub fn read(text: &str) -> Self {
        let body = text
            .strip_suffix("# EOF\n")
            .expect("a page ends with # EOF");
        let (mut families, mut samples) = (BTreeMap::new(), Vec::<MetricSample>::new());
        let (mut family, mut series) = (String::new(), BTreeSet::new());
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let (what, name) = (
                    words.next().expect("a word"),
                    words.next().expect("a family"),
                );
                match what {
                    "TYPE" => {
                        let kind = words.next().expect("a type").to_owned();
                        family = name.to_owned();
                        assert!(
                            families.insert(family.clone(), kind).is_none(),
                            "{name} is declared twice"
                        );
                    }
                    "HELP" => assert!(
                        words.next().is_some_and(|help| !help.is_empty()),
                        "{name} has no help"
                    ),
                    "UNIT" => {}
                    _ => panic!("not OpenMetrics: {line}"),
                }
                continue;
            }
            assert!(
                series.insert(line.rsplit_once(' ').expect("a value").0.to_owned()),
                "twice: {line}"
            );
            let sample = MetricSample::read(line, &family);
            let suffix = sample
                .name
                .strip_prefix(&*family)
                .unwrap_or_else(|| panic!("{line} is not of {family}"));
            let fits = match families[&family].as_str() {
                "counter" => suffix == "_total",
                "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
                "gauge" => suffix.is_empty(),
                other => panic!("{family} is a {other}"),
            };
            assert!(fits, "{line} does not fit a {}", families[&family]);
            samples.push(sample);
        }
        Self { families, samples }
    }

    /// The samples with this name.
    pub fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a MetricSample> {
        self.samples
            .iter()
            .filter(move |sample| sample.name == name)
    }

    /// The value of the only series with exactly these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let want: BTreeMap<String, String> = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let found = self.of(name).find(|sample| sample.labels == want);
        found
            .unwrap_or_else(|| panic!("no {name} {labels:?}"))
            .value
    }
}

impl MetricSample {
    fn read(line: &str, family: &str) -> Self {
        // An exemplar follows the value.
        let line = line.split(" # ").next().expect("a split has a first part");
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (
                name,
                labels.strip_suffix('}').expect("labels end with a brace"),
            ),
            None => (series, ""),
        };
        let value = value
            .parse()
            .unwrap_or_else(|_| panic!("not a number: {line}"));
        let labels = labels
            .split("\",")
            .filter(|label| !label.is_empty())
            .map(|label| {
                let (key, value) = label
                    .split_once("=\"")
                    .unwrap_or_else(|| panic!("not a label: {line}"));
                (key.to_owned(), value.trim_end_matches('"').to_owned())
            });
        Self {
            family: family.to_owned(),
            name: name.to_owned(),
            labels: labels.collect(),
            value,
        }
    }
}
