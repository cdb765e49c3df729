//! The device's block pool: a fixed number of blocks, reference counts, LRU eviction.
//!
//! Names (hashes) are stored per physical copy: two sequences that computed the same block have two
//! copies of one name. The pool has no knowledge of sequences, tokens or time.

use std::{collections::HashMap, sync::Arc};

use kv_blocks::EngineHash;

use crate::BlockMedia;

/// A physical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockId(u32);

/// The content of a named block; enough to announce it again in another tier.
#[derive(Clone, Debug)]
pub(crate) struct BlockContent {
    pub(crate) hash: EngineHash,
    pub(crate) parent: Option<EngineHash>,
    /// Empty if no host tier needs them.
    pub(crate) tokens: Box<[u32]>,
    pub(crate) lora: Option<Arc<str>>,
    /// Only on the first block of a sequence.
    pub(crate) salt: Option<Arc<str>>,
    pub(crate) media: BlockMedia,
}

#[derive(Debug)]
struct PoolBlock {
    references: u32,
    content: Option<BlockContent>,
    /// Neighbours in the free list, while the block has no references.
    before: Option<BlockId>,
    after: Option<BlockId>,
}

/// All blocks, the free list through them and the names of the filled ones.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<PoolBlock>,
    /// The next block to take: the least recently used one.
    oldest: Option<BlockId>,
    newest: Option<BlockId>,
    free: usize,
    copies: HashMap<EngineHash, Vec<BlockId>>,
    named: usize,
}

impl BlockPool {
    pub(crate) fn new(total: u32) -> Self {
        let mut pool = Self {
            blocks: Vec::new(),
            oldest: None,
            newest: None,
            free: 0,
            copies: HashMap::new(),
            named: 0,
        };
        for number in 0..total {
            pool.blocks.push(PoolBlock {
                references: 0,
                content: None,
                before: None,
                after: None,
            });
            pool.append(BlockId(number));
        }
        pool
    }

    pub(crate) fn total(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the number of blocks without references, named or not.
    pub(crate) fn free(&self) -> usize {
        self.free
    }

    /// Returns the number of named blocks, copies included.
    pub(crate) fn named(&self) -> usize {
        self.named
    }

    pub(crate) fn find(&self, hash: EngineHash) -> Option<BlockId> {
        self.copies
            .get(&hash)
            .and_then(|copies| copies.first())
            .copied()
    }

    pub(crate) fn is_free(&self, id: BlockId) -> bool {
        self.block(id).references == 0
    }

    /// Adds a reference to a block.
    pub(crate) fn pin(&mut self, id: BlockId) {
        if self.is_free(id) {
            self.unlink(id);
        }
        self.block_mut(id).references += 1;
    }

    /// Takes the least recently used free block, with one reference; returns its removed content.
    pub(crate) fn take(&mut self) -> Option<(BlockId, Option<BlockContent>)> {
        let id = self.oldest?;
        let evicted = self.unname(id);
        self.pin(id);
        Some((id, evicted))
    }

    /// Names the content of a block. The block must be unnamed.
    pub(crate) fn name(&mut self, id: BlockId, content: BlockContent) {
        self.copies.entry(content.hash).or_default().push(id);
        self.named += 1;
        self.block_mut(id).content = Some(content);
    }

    /// Drops a reference to a block; at zero it becomes the newest free block and keeps its name.
    pub(crate) fn release(&mut self, id: BlockId) {
        let block = self.block_mut(id);
        block.references -= 1;
        if block.references == 0 {
            self.append(id);
        }
    }

    /// Drops a reference to a block; at zero a block without a name becomes the next one to take,
    /// because it has no content to lose.
    pub(crate) fn release_empty_first(&mut self, id: BlockId) {
        let block = self.block_mut(id);
        if block.content.is_some() || block.references > 1 {
            return self.release(id);
        }
        block.references = 0;
        self.prepend(id);
    }

    /// Removes every name, also of blocks in use.
    pub(crate) fn forget_names(&mut self) {
        self.copies.clear();
        self.named = 0;
        for block in &mut self.blocks {
            block.content = None;
        }
    }

    /// Returns the names of all copies, in no particular order.
    pub(crate) fn names(&self) -> impl Iterator<Item = EngineHash> {
        self.blocks
            .iter()
            .filter_map(|block| block.content.as_ref().map(|content| content.hash))
    }

    fn unname(&mut self, id: BlockId) -> Option<BlockContent> {
        let content = self.block_mut(id).content.take()?;
        self.named -= 1;
        if let Some(copies) = self.copies.get_mut(&content.hash) {
            copies.retain(|copy| *copy != id);
            if copies.is_empty() {
                self.copies.remove(&content.hash);
            }
        }
        Some(content)
    }

    fn append(&mut self, id: BlockId) {
        let newest = self.newest.replace(id);
        match newest {
            Some(newest) => self.block_mut(newest).after = Some(id),
            None => self.oldest = Some(id),
        }
        let block = self.block_mut(id);
        (block.before, block.after) = (newest, None);
        self.free += 1;
    }

    fn prepend(&mut self, id: BlockId) {
        let oldest = self.oldest.replace(id);
        match oldest {
            Some(oldest) => self.block_mut(oldest).before = Some(id),
            None => self.newest = Some(id),
        }
        let block = self.block_mut(id);
        (block.before, block.after) = (None, oldest);
        self.free += 1;
    }

    fn unlink(&mut self, id: BlockId) {
        let PoolBlock { before, after, .. } = *self.block(id);
        match before {
            Some(before) => self.block_mut(before).after = after,
            None => self.oldest = after,
        }
        match after {
            Some(after) => self.block_mut(after).before = before,
            None => self.newest = before,
        }
        self.free -= 1;
    }

    fn block(&self, id: BlockId) -> &PoolBlock {
        &self.blocks[id.0 as usize]
    }

    fn block_mut(&mut self, id: BlockId) -> &mut PoolBlock {
        &mut self.blocks[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(hash: u64) -> BlockContent {
        BlockContent {
            hash: EngineHash(hash),
            parent: None,
            tokens: Box::default(),
            lora: None,
            salt: None,
            media: BlockMedia::new(),
        }
    }

    fn taken(pool: &mut BlockPool, hash: u64) -> BlockId {
        let (id, _) = pool.take().unwrap();
        pool.name(id, content(hash));
        id
    }

    #[test]
    fn the_least_recently_released_block_is_reused_first() {
        let mut pool = BlockPool::new(3);
        let ids = [1, 2, 3].map(|hash| taken(&mut pool, hash));
        assert!(pool.take().is_none(), "blocks in use are never taken");
        for index in [1, 0, 2] {
            pool.release(ids[index]);
        }
        let evicted: Vec<_> = (0..3)
            .map(|_| pool.take().unwrap().1.unwrap().hash.0)
            .collect();
        assert_eq!(evicted, [2, 1, 3]);
        assert_eq!(pool.named(), 0);
    }

    #[test]
    fn an_empty_block_is_used_before_any_cached_one() {
        let mut pool = BlockPool::new(3);
        let named = taken(&mut pool, 1);
        let (empty, _) = pool.take().unwrap();
        let (last, _) = pool.take().unwrap();
        for id in [named, empty, last] {
            pool.release_empty_first(id);
        }
        assert_eq!(pool.free(), 3);
        let order: Vec<_> = (0..3).map(|_| pool.take().unwrap().0).collect();
        assert_eq!(order, [last, empty, named]);
        assert!(pool.take().is_none());
    }

    #[test]
    fn a_pinned_block_is_not_reused_and_keeps_its_hash() {
        let mut pool = BlockPool::new(2);
        let block = taken(&mut pool, 1);
        let other = taken(&mut pool, 2);
        pool.release(block);
        pool.release(other);
        pool.pin(block);
        assert_eq!(pool.take().unwrap().0, other);
        assert_eq!(pool.find(EngineHash(1)), Some(block));
        assert_eq!(pool.find(EngineHash(2)), None);
    }

    #[test]
    fn after_one_copy_is_evicted_the_other_is_still_found() {
        let mut pool = BlockPool::new(2);
        let first = taken(&mut pool, 7);
        let second = taken(&mut pool, 7);
        assert_eq!(pool.named(), 2);
        pool.release(first);
        assert_eq!(pool.take().unwrap().1.unwrap().hash, EngineHash(7));
        assert_eq!(pool.find(EngineHash(7)), Some(second));
    }
}
