//! Flags of the programs beside: `--name number`, all of them with a default.

use std::{collections::BTreeMap, process::exit};

/// The flags, by name.
#[derive(Debug)]
pub(crate) struct ExampleFlags(BTreeMap<&'static str, u64>);

impl ExampleFlags {
    /// Reads the arguments of this process; a wrong one ends it with exit code 2.
    pub(crate) fn read(program: &str, defaults: &[(&'static str, u64)]) -> Self {
        let mut flags: BTreeMap<_, _> = defaults.iter().copied().collect();
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let value = arguments.next().and_then(|text| number(&text));
            match (flags.iter_mut().find(|(known, _)| ***known == *name), value) {
                (Some((_, flag)), Some(value)) => *flag = value,
                _ => usage(program, &name, defaults),
            }
        }
        Self(flags)
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.0[name]
    }
}

/// Digits, and perhaps a unit: `512MiB`.
fn number(text: &str) -> Option<u64> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let unit = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (digits, shift) = unit.unwrap_or((text, 0));
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[expect(clippy::print_stderr, reason = "it is for whoever typed the flag")]
fn usage(program: &str, name: &str, defaults: &[(&'static str, u64)]) -> ! {
    let known: Vec<_> = defaults
        .iter()
        .map(|(name, value)| format!("[{name} NUMBER, default {value}]"))
        .collect();
    eprintln!(
        "{program}: {name} is not a flag with a number behind it (512, 512MiB)\nusage: {program} {}",
        known.join(" ")
    );
    exit(2)
}
