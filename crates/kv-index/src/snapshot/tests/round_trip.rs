//! A snapshot is equal after reading.

use proptest::{collection::vec, option, prelude::*};

use super::*;

const TIERS: usize = Tier::ALL.len();

/// Random properties of a run, before its numbers are adjusted to the others.
#[derive(Clone, Debug)]
struct RunDraft {
    parent: Option<(usize, u32)>,
    hashes: Vec<u64>,
    /// The held blocks per target and tier, as 64 bits that repeat.
    resident: Vec<[u64; TIERS]>,
    names: Vec<(usize, u32, u32)>,
    /// Which of the blocks on a device are counted.
    counted: u64,
}

fn draft() -> impl Strategy<Value = RunDraft> {
    let length = prop_oneof![20 => 1..70_usize, 1 => Just(MAX_RUN_BLOCKS)];
    // Not all hashes of a long run need to be random.
    let hashes = (length, any::<u64>())
        .prop_map(|(length, seed)| (0..length as u64).map(|i| seed ^ i << 32).collect());
    (
        option::of((any::<usize>(), any::<u32>())),
        hashes,
        vec(any::<[u64; TIERS]>(), 0..4),
        vec(any::<(usize, u32, u32)>(), 0..4),
        any::<u64>(),
    )
        .prop_map(|(parent, hashes, resident, names, counted)| RunDraft {
            parent,
            hashes,
            resident,
            names,
            counted,
        })
}

/// Returns the stretches of ones.
fn stretches(bits: u64, length: u32) -> Vec<(u32, u32)> {
    let mut found: Vec<(u32, u32)> = Vec::new();
    for at in (0..length).filter(|at| bits.rotate_right(*at) & 1 == 1) {
        match found.last_mut() {
            Some((_, end)) if *end == at => *end += 1,
            _ => found.push((at, at + 1)),
        }
    }
    found
}

/// Counts some of the blocks on devices.
fn copies(holders: &[HolderRecord], counted: u64) -> Vec<CopyRecord> {
    let on_device = holders.iter().filter(|held| held.tier == Tier::Device);
    let blocks = on_device.flat_map(|held| (held.start..held.end).map(|at| (held.slot, at)));
    let counted = blocks.filter(|(slot, at)| counted.rotate_right(slot ^ at) & 1 == 1);
    let mut copies: Vec<CopyRecord> = counted
        .map(|(slot, at)| CopyRecord {
            slot,
            at,
            spare: u8::try_from(at % 7 + 1).unwrap(),
            lapses_after: (at % 3 == 0).then_some(u64::from(at) << 33),
        })
        .collect();
    copies.sort_unstable();
    copies
}

fn blocks<T>(run: &[T]) -> u32 {
    u32::try_from(run.len()).unwrap()
}

fn fitted(drafts: Vec<RunDraft>, targets: &[TargetRecord]) -> Vec<OwnRun> {
    let mut runs: Vec<OwnRun> = Vec::new();
    for (number, draft) in (0_u32..).zip(drafts) {
        let parent = draft.parent.filter(|_| number > 0).map(|(choice, attach)| {
            let run = &runs[choice % runs.len()];
            let attach = 1 + attach % blocks(&run.hashes);
            (
                ParentLink {
                    run: run.id,
                    attach,
                },
                run.depth + attach,
                run.space,
            )
        });
        let length = blocks(&draft.hashes);
        let mut holders = Vec::new();
        for (record, resident) in targets.iter().zip(&draft.resident) {
            for (tier, bits) in Tier::ALL.into_iter().zip(resident) {
                let stretches = stretches(*bits, length).into_iter();
                holders.extend(stretches.map(|(start, end)| HolderRecord {
                    slot: record.slot,
                    tier,
                    start,
                    end,
                }));
            }
        }
        let copies = copies(&holders, draft.counted);
        let groups: Vec<u32> = targets
            .iter()
            .filter_map(|record| Some(record.member?.group))
            .collect();
        let named = draft.names.iter().filter(|_| !groups.is_empty());
        let names: Vec<NameStretch> = named
            .map(|(group, at, count)| {
                let at = at % length;
                let group = groups[group % groups.len()];
                NameStretch {
                    group,
                    size: size(16),
                    at,
                    count: 1 + count % (length - at),
                }
            })
            .collect();
        let engine = (0..names.iter().map(|stretch| u64::from(stretch.count)).sum())
            .map(EngineHash)
            .collect();
        let space = parent.map_or(number % 3, |(_, _, space)| space);
        let depth = parent.map_or(0, |(_, depth, _)| depth);
        let hashes = draft.hashes.into_iter().map(SequenceHash).collect();
        let parent = parent.map(|(parent, ..)| parent);
        runs.push(OwnRun {
            id: number ^ 0x5555,
            space,
            parent,
            depth,
            hashes,
            holders,
            names,
            engine,
            copies,
        });
    }
    runs
}

fn text() -> impl Strategy<Value = Option<Arc<str>>> {
    option::of("\\PC{0,40}".prop_map(Arc::from))
}

fn sample() -> impl Strategy<Value = SampleContent> {
    let member = (0..3_u32, any::<bool>(), any::<bool>());
    let member = option::of(member.prop_map(|(group, common, proven)| MemberRecord {
        group,
        common,
        proven,
    }));
    let position = (any::<u64>(), any::<u64>());
    let position = option::of(position.prop_map(|(seq, digest)| StreamPosition { seq, digest }));
    let target = (text(), vec(1..=65_536_u64, 0..8), member, position);
    let space = (text(), text(), any::<bool>());
    (vec(space, 3), vec(target, 0..4), vec(draft(), 0..12)).prop_map(|(spaces, targets, drafts)| {
        let space = |(number, (lora, salt, exact)): (u32, _)| {
            let identity = if exact {
                PromptIdentity::Tokens
            } else {
                PromptIdentity::TextPrefix
            };
            let model = format!("model {number}").into();
            NamespaceRecord {
                number,
                namespace: Namespace {
                    model,
                    lora,
                    salt,
                    block_size: size(16),
                    identity,
                },
            }
        };
        let target = |(slot, (model, sizes, member, position)): (
            u32,
            (_, Vec<u64>, _, Option<StreamPosition>),
        )| TargetRecord {
            slot: slot * 1000,
            target: Target {
                worker: WorkerId(u32::MAX - slot),
                rank: DpRank(slot),
            },
            model,
            block_size: sizes.first().map(|tokens| size(*tokens)),
            block_sizes: sizes.into_iter().map(size).collect(),
            member,
            position: position.map(|batch| PositionRecord {
                batch,
                within_next: batch.seq % 2 == 1,
            }),
        };
        let targets: Vec<TargetRecord> = (0..).zip(targets).map(target).collect();
        let runs = fitted(drafts, &targets);
        SampleContent {
            spaces: (0..).zip(spaces).map(space).collect(),
            targets,
            runs,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_written_snapshot_reads_back_equal(sample in sample()) {
        let content = loaded(&written(&sample, HashScheme::default())).unwrap();
        prop_assert_eq!(content.spaces(), &sample.spaces);
        prop_assert_eq!(content.targets(), &sample.targets);
        let runs: Vec<OwnRun> = content.runs().map(OwnRun::from).collect();
        prop_assert_eq!(runs, sample.runs);
    }
}

#[test]
fn holders_are_read_in_order_whatever_order_they_were_written_in() {
    let mut shuffled = small();
    shuffled.runs[0].holders.reverse();
    let content = loaded(&written(&shuffled, HashScheme::default())).unwrap();
    assert_eq!(
        content.runs().next().unwrap().holders,
        small().runs[0].holders
    );
}

#[test]
fn a_run_with_more_holders_than_fit_a_page_reads_back_equal() {
    let mut sample = small();
    for slot in 100..20_100 {
        let target = Target {
            worker: WorkerId(slot),
            rank: DpRank(0),
        };
        sample.targets.push(TargetRecord {
            slot,
            target,
            ..sample.targets[1].clone()
        });
        sample.runs[0].holders.push(HolderRecord {
            slot,
            tier: Tier::Device,
            start: 0,
            end: 4,
        });
    }
    let content = loaded(&written(&sample, HashScheme::default())).unwrap();
    assert_eq!(content.runs().next().unwrap().holders.len(), 20_004);
    assert_eq!(content.targets(), sample.targets);
}

#[test]
fn each_range_of_named_blocks_reads_back_with_its_own_hashes() {
    let content = loaded(&written(&small(), HashScheme::default())).unwrap();
    let run = content.runs().next().unwrap();
    let named: Vec<_> = run
        .named()
        .map(|(stretch, names)| (stretch.at, names.to_vec()))
        .collect();
    assert_eq!(
        named,
        [
            (0, [1, 2, 3, 4].map(EngineHash).to_vec()),
            (1, vec![EngineHash(22)])
        ]
    );
}

#[test]
fn an_empty_index_reads_back_empty() {
    let content = loaded(&written(&SampleContent::default(), HashScheme::default())).unwrap();
    assert_eq!(
        (
            content.spaces().len(),
            content.targets().len(),
            content.runs().len()
        ),
        (0, 0, 0)
    );
}

#[test]
fn a_salt_of_megabytes_reads_back_equal() {
    let mut sample = small();
    sample.spaces[0].namespace.salt = Some("x".repeat(3 << 20).into());
    assert_eq!(
        loaded(&written(&sample, HashScheme::default()))
            .unwrap()
            .spaces(),
        sample.spaces
    );
}

#[test]
fn a_record_that_could_not_be_read_is_not_written() {
    let mut sample = small();
    let run = &mut sample.runs[0];
    let refusal = |run: &OwnRun| {
        let mut file = Vec::new();
        SnapshotWriter::new(&mut file, HashScheme::default())
            .unwrap()
            .run(&run.record())
            .unwrap_err()
            .to_string()
    };
    run.engine.pop();
    assert_eq!(
        refusal(run),
        "run 5 for a snapshot has 4 names, expected the 5 of its stretches"
    );
    run.hashes = vec![SequenceHash(0); MAX_RUN_BLOCKS + 1];
    assert_eq!(
        refusal(run),
        "run 5 for a snapshot has 8193 blocks, expected 1 to 8192"
    );
    run.hashes.clear();
    assert_eq!(
        refusal(run),
        "run 5 for a snapshot has 0 blocks, expected 1 to 8192"
    );
}
