//! The streams of one tier of a target, and the sets of their blocks.

use std::{collections::HashSet, sync::Arc};

use super::{LabelledPrefix, MediumStream, StreamBlock, StreamName, StreamRole};

/// Most streams beside the first one of a tier.
pub(super) const MAX_STREAMS: usize = 16;

/// A stream beside the first one of its tier.
#[derive(Debug)]
pub(super) struct FurtherStream {
    pub(super) name: StreamName,
    pub(super) blocks: HashSet<StreamBlock>,
}

/// The streams of one tier of a target.
#[derive(Debug, Default)]
pub(super) struct TierStreams {
    /// The first stream; `None` as long as there are only media with unknown names.
    pub(super) first: Option<StreamName>,
    /// Bounded: [`MAX_STREAMS`]; each has blocks.
    pub(super) further: Vec<FurtherStream>,
    /// Blocks of further streams that the first one holds, too.
    pub(super) with_first: HashSet<StreamBlock>,
    /// Whether further streams may hold blocks that are in no set.
    pub(super) incomplete: bool,
}

impl TierStreams {
    pub(super) fn len(&self) -> usize {
        self.further
            .iter()
            .map(|further| further.blocks.len())
            .sum()
    }

    pub(super) fn role(&self, stream: &MediumStream<'_>) -> StreamRole {
        match (self.is_first(stream), self.further.is_empty()) {
            (true, true) => StreamRole::Alone,
            (true, false) => StreamRole::First,
            (false, _) => StreamRole::Further,
        }
    }

    pub(super) fn is_first(&self, stream: &MediumStream<'_>) -> bool {
        self.first.as_ref().is_some_and(|first| first.is(stream))
    }

    pub(super) fn is_in_a_set(&self, block: &StreamBlock) -> bool {
        let mut sets = self.further.iter();
        sets.any(|further| further.blocks.contains(block))
    }

    fn further(&mut self, stream: &MediumStream<'_>) -> Option<&mut FurtherStream> {
        let mut further = self.further.iter_mut();
        further.find(|further| further.name.is(stream))
    }

    /// Returns a further stream; adds it without blocks if there is room.
    fn find_or_add(&mut self, stream: &MediumStream<'_>) -> Option<&mut FurtherStream> {
        if self.further(stream).is_none() && self.further.len() < MAX_STREAMS {
            self.further.push(FurtherStream {
                name: StreamName::of(stream),
                blocks: HashSet::new(),
            });
        }
        self.further(stream)
    }

    pub(super) fn blocks_of(
        &self,
        stream: &MediumStream<'_>,
        space: Option<u64>,
    ) -> Vec<StreamBlock> {
        let mut known = self.further.iter().filter(|it| it.name.is(stream));
        let blocks = known.next().into_iter().flat_map(|it| &it.blocks).copied();
        blocks.filter(|block| is_in(space, block)).collect()
    }

    /// Returns whether a stream holds a block of the tier.
    pub(super) fn holds(&self, stream: &MediumStream<'_>, block: &StreamBlock) -> bool {
        if self.is_first(stream) {
            return self.with_first.contains(block) || !self.is_in_a_set(block);
        }
        let mut further = self.further.iter().filter(|it| it.name.is(stream));
        further.any(|further| further.blocks.contains(block))
    }

    /// Takes a block from a stream; returns whether the stream held it, and whether another one does.
    pub(super) fn leave(&mut self, stream: &MediumStream<'_>, block: &StreamBlock) -> (bool, bool) {
        let held = self.withdraw(stream, block);
        if self.is_in_a_set(block) {
            return (held, true);
        }
        // A block in no set is the first stream's without a mark.
        let with_first = self.with_first.remove(block);
        (held, with_first && !self.is_first(stream))
    }

    /// Takes a block from a stream; returns whether the stream held it.
    fn withdraw(&mut self, stream: &MediumStream<'_>, block: &StreamBlock) -> bool {
        if self.is_first(stream) {
            return self.with_first.remove(block) || !self.is_in_a_set(block);
        }
        let known = self.further(stream);
        known.is_some_and(|further| further.blocks.remove(block))
    }

    /// Drops streams without blocks, and the room that blocks left; returns the blocks in sets.
    pub(super) fn tidy(&mut self) -> usize {
        self.further.retain(|further| !further.blocks.is_empty());
        if self.further.is_empty() {
            self.with_first.clear();
        }
        for further in &mut self.further {
            shrink(&mut further.blocks);
        }
        shrink(&mut self.with_first);
        self.len()
    }

    pub(super) fn note_names(&mut self, stream: &MediumStream<'_>) {
        match &mut self.first {
            Some(first) if first.is(stream) => first.has_names = true,
            _ => {
                _ = self
                    .find_or_add(stream)
                    .map(|further| further.name.has_names = true)
            }
        }
    }

    pub(super) fn first_has_all_chunks(&self) -> bool {
        let mut others = self.further.iter().map(|further| &further.name);
        self.first.as_ref().is_some_and(StreamName::has_chunks)
            && !others.any(StreamName::has_chunks)
    }

    /// Takes the first stream's mark from all blocks, or from those of one namespace.
    pub(super) fn clear_marks(&mut self, space: Option<u64>) {
        self.with_first.retain(|block| !is_in(space, block));
        shrink(&mut self.with_first);
    }

    /// Returns whether a set has blocks, or any of one namespace.
    pub(super) fn any_in(&self, space: Option<u64>) -> bool {
        let mut blocks = self.further.iter().flat_map(|further| &further.blocks);
        blocks.any(|block| is_in(space, block))
    }

    pub(super) fn add_further(
        &mut self,
        stream: &MediumStream<'_>,
        blocks: &[StreamBlock],
        held: &HashSet<StreamBlock>,
        mut room: usize,
    ) {
        self.find_or_add(stream);
        for block in blocks {
            // A block in no set may be another further stream's, if some are in none.
            let is_first = held.contains(block) && !self.incomplete && !self.is_in_a_set(block);
            match self.further(stream) {
                Some(known) if known.blocks.contains(block) => {}
                Some(known) if room > 0 => {
                    known.blocks.insert(*block);
                    room -= 1;
                    self.with_first.extend(is_first.then_some(*block));
                }
                _ => self.incomplete = true,
            }
        }
        self.further.retain(|further| !further.blocks.is_empty());
    }

    /// Counts a block under the labels of its media.
    pub(super) fn count_labels(&self, block: &StreamBlock, found: &mut LabelledPrefix) {
        let (mut labels, mut is_on_disk) = (Vec::new(), self.with_first.contains(block));
        for FurtherStream { name, .. } in self.further.iter().filter(|it| it.blocks.contains(block))
        {
            is_on_disk |= !name.unlisted;
            // Two backends may hold it on media of one name.
            let is_new = |label: &&StreamName| !label.medium.eq_ignore_ascii_case(&name.medium);
            if name.unlisted && labels.iter().all(is_new) {
                labels.push(name);
            }
        }
        found.blocks += u32::from(!labels.is_empty() && !is_on_disk);
        for StreamName { medium, .. } in labels {
            let mut known = found.labels.iter_mut();
            match known.find(|(label, _)| label.eq_ignore_ascii_case(medium)) {
                Some((_, blocks)) => *blocks += 1,
                None => _ = found.labels.insert(Arc::clone(medium), 1),
            }
        }
    }
}

/// Frees room that most blocks of a set have left. Not earlier: a set about as full as before would
/// soon grow again.
fn shrink(blocks: &mut HashSet<StreamBlock>) {
    if blocks.len() < blocks.capacity() / 4 {
        blocks.shrink_to_fit();
    }
}

/// Returns whether a block is in a namespace; `None` means all of them.
pub(super) fn is_in(space: Option<u64>, block: &StreamBlock) -> bool {
    space.is_none_or(|space| space == block.0)
}
