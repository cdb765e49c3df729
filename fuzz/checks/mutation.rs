//! The fuzz targets without a fuzzer: every stored input, and changed ones by dice.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use super::random::SplitMix64;

/// Changed inputs of each target.
const MUTATIONS: usize = 10_000;
/// Longer inputs are checked as they are only: most changes to them are in the same kind of place.
const LONGEST_CHANGED: usize = 16 << 10;
/// Bytes that mean much in msgpack and in frames.
const TELLING: [u8; 16] = [
    0, 1, 4, 0x7f, 0x80, 0x90, 0xa0, 0xc0, 0xc1, 0xc4, 0xca, 0xcf, 0xdb, 0xdd, 0xdf, 0xff,
];

/// Checks every file in these folders of the repository, and changed ones.
///
/// # Panics
///
/// If a check does, with the input it did so for; or if a folder is empty.
pub(crate) fn survives(folders: &[&str], check: fn(&[u8])) {
    let mut inputs: Vec<Vec<u8>> = Vec::new();
    for folder in folders {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(folder);
        let before = inputs.len();
        let mut files: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|file| file.unwrap().path())
            .collect();
        // In the same order everywhere, for the dice.
        files.sort();
        inputs.extend(files.iter().map(|file| fs::read(file).unwrap()));
        assert!(inputs.len() > before, "{} is empty", folder.display());
    }
    inputs.iter().for_each(|input| check(input));
    inputs.retain(|input| input.len() <= LONGEST_CHANGED);
    let mut dice = SplitMix64::new(inputs.len() as u64);
    for number in 0..MUTATIONS {
        let input = mutated(&mut dice, &inputs);
        let outcome = catch_unwind(AssertUnwindSafe(|| check(&input)));
        assert!(
            outcome.is_ok(),
            "changed input {number} is not survived: {input:02x?}"
        );
    }
}

/// One of the inputs, changed in one to four places.
fn mutated(dice: &mut SplitMix64, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = dice.pick(inputs).clone();
    for _ in 0..dice.within(1, 4) {
        let at = dice.below(bytes.len() + 1);
        let end = at + dice.below((bytes.len() - at).min(64) + 1);
        match dice.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            1 if at < bytes.len() => bytes[at] = *dice.pick(&TELLING),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, *dice.pick(&TELLING)),
            4 => drop(bytes.drain(at..end)),
            5 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                let other = dice.pick(inputs);
                let from = dice.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
    }
    bytes
}
