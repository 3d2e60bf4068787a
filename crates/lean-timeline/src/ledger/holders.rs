//! From the blocks of a recording to the holders of a snapshot.

use super::{
    block::{Block, Purpose},
    blocks::Blocks,
};
use crate::snapshot::{Category, Holder};

/// The holders of all blocks, block by block; `end` is the number of ticks.
pub(super) fn holders(blocks: &Blocks, end: usize) -> impl Iterator<Item = Holder> + '_ {
    blocks.iter().flat_map(move |block| of(block, end))
}

/// One holder for each purpose of a block.
fn of(block: &Block, end: usize) -> impl Iterator<Item = Holder> + '_ {
    let purposes = match block.purposes.as_slice() {
        [] => vec![(block.from, unassigned(block))],
        purposes => purposes.to_vec(),
    };
    let last = block.until.unwrap_or(end);
    let until = purposes.iter().skip(1).map(|(from, _)| *from);
    let until: Vec<usize> = until.chain([last]).collect();
    let spans = purposes.into_iter().zip(until);
    // A purpose that another one replaced at once.
    let spans = spans.filter(|((from, _), until)| from < until);
    spans.map(|((from, purpose), until)| Holder {
        bytes: block.storage.bytes,
        category: purpose.category,
        parameter: purpose.parameter.or(block.nearest_parameter),
        operation: block.operation,
        from,
        until,
    })
}

/// The purpose of a block that was freed, or the recording ended, before one was known.
fn unassigned(block: &Block) -> Purpose {
    Purpose {
        category: match block.is_of_a_step {
            true => Category::Temporaries,
            false => Category::Other,
        },
        parameter: None,
    }
}
