//! Hash table from a block's key to its position, one for all namespaces, 8 bytes a slot.
//!
//! The table is cut into segments, each a row of 64-byte lines of eight slots. A directory of fixed
//! length has each segment's lines; a segment grows by itself, a quarter at a time, so no operation
//! ever waits for the whole table to be moved.
//!
//! A slot has `run`, `at` and 22 bits of the key's position in its segment. The position alone
//! decides the line of a key, whatever the number of lines, so a segment is resized without reading
//! any block. The block's hash is not in the table: a reader compares it with the hash in the run.
//!
//! A key whose line is full goes to one of seven others that its position determines. Its own line
//! counts, for each of these, how many keys are there (4 bits in a slot's word; a line holds 8), so
//! that a search knows which lines to read: most often none.
//!
//! **Readers.** An entry stays in its word until it is removed or its segment is resized. A resized
//! segment gets other lines and then another directory entry, with a number that distinguishes it
//! from earlier ones; a reader that found nothing reads the directory again and starts over if it
//! has changed. So a reader that finds nothing was right at some moment between the beginning and the
//! end of its search.

#![allow(
    clippy::cast_possible_truncation,
    reason = "fields are cut out of words, and numbers of blocks fit 32 bits"
)]

mod block_table;
mod line_scan;
mod placement;
mod segment;
mod slot;
mod update;

pub(crate) use self::{
    block_table::{BlockTable, DirectoryState, HomeLine, LineId},
    slot::{BlockRef, RUN_BLOCKS, TableEntry, TableKey},
    update::{NoFreeLines, NotInserted, TableFill},
};
