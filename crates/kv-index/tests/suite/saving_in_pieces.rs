//! A snapshot that is saved in pieces, between which updates go on, is the content at one instant.

use std::sync::Arc;

use kv_index::{IndexSettings, KvIndex, TargetDigest};

use crate::oracle::{setup::Setup, trial::Trial, whole};

/// Few enough items that a save takes many holds of the lock.
const ITEMS: usize = 50;

fn empty() -> KvIndex {
    KvIndex::new(IndexSettings {
        unconfirmed_ttl: std::time::Duration::ZERO,
        ..IndexSettings::default()
    })
}

#[test]
fn the_saved_content_is_that_of_the_last_hold_of_the_lock() {
    let mut all = 0;
    for seed in 0..30 {
        let setup = Setup::ample(seed);
        let steps = setup.steps(2500);
        let (before, meanwhile) = steps.split_at(1500);
        let mut trial = Trial::new(&setup);
        before.iter().try_for_each(|step| trial.play(step)).unwrap();
        let index = Arc::clone(&trial.index);
        let (mut steps, mut file) = (meanwhile.iter(), Vec::new());
        let (mut last, mut holds) = (Vec::<TargetDigest>::new(), 0);
        let saved = index.save_in_pieces(&mut file, ITEMS, &mut || {
            last = index.digest();
            holds += 1;
            let some = steps.by_ref().take(3);
            some.for_each(|step| trial.play(step).unwrap());
        });
        all += holds;
        let loaded = empty();
        let summary = loaded.load(&mut &file[..]).unwrap();
        assert_eq!(loaded.digest(), last, "seed {seed}");
        let saved = saved.unwrap();
        assert_eq!(
            (summary.blocks, summary.memberships),
            (saved.blocks, saved.memberships),
            "seed {seed}"
        );
    }
    assert!(all > 600, "{all}");
}

/// Engine hashes, groups and namespaces are those of that instant, too: every later event has the
/// effect that it has without the move.
#[test]
fn an_index_saved_between_updates_continues_as_the_saved_one() {
    let mut moves = 0;
    for seed in 0..40 {
        let setup = Setup::ample(seed);
        let steps = setup.steps(2500);
        let (before, rest) = steps.split_at(1000);
        let (meanwhile, after) = rest.split_at(300);
        let mut trial = Trial::new(&setup);
        before.iter().try_for_each(|step| trial.play(step)).unwrap();
        let index = Arc::clone(&trial.index);
        let (mut steps, mut file) = (meanwhile.chunks(150), Vec::new());
        let mut holds = 0;
        let saved = index.save_in_pieces(&mut file, ITEMS, &mut || {
            holds += 1;
            match steps.next() {
                Some(some) => some.iter().for_each(|step| trial.play(step).unwrap()),
                None if holds == 3 => trial.remove_unsaved(),
                None => {}
            }
        });
        saved.unwrap();
        if holds <= 3 {
            // The last hold came before the removals.
            continue;
        }
        moves += 1;
        let moved = empty();
        moved.load(&mut &file[..]).unwrap();
        assert_eq!(trial.index.digest(), moved.digest(), "seed {seed}");
        trial.index = Arc::new(moved);
        whole::compare(&mut trial).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let played = after.iter().try_for_each(|step| trial.play(step));
        played
            .and_then(|()| trial.finish())
            .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
    assert!(moves > 25, "{moves}");
}
