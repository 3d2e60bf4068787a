//! Where to cut a forward pass into segments.
//!
//! Two things are in memory when backward runs a segment: the tensors that cross the cuts up to its
//! beginning, and those that the tape saves of its own operations. More cuts make the second
//! smaller and the first larger. Of all sets of cuts, [`plan`] looks for one whose highest sum is
//! lowest.
//!
//! Several tensors may cross a cut, as the skip connections of a U-Net do. A tensor is held once,
//! however many cuts it crosses, and is counted at the first. It stays counted for the rest of the
//! pass: once backward has run its last use, the tensor is freed, but its gradient, which is as
//! large, waits for the operation that made it.

use crate::planner::{blocks::Blocks, operations::Trace};

pub(super) use crate::planner::blocks::Cuts;

/// Plans a forward pass like this one: with the lowest peak, or, within `budget` bytes, with as few
/// operations recomputed as possible if those after some cut are kept.
///
/// If `is_last`, the operations after the last cut run backward first, and are kept. Otherwise the
/// backward pass would hold them while it runs later operations.
pub(super) fn plan(trace: &Trace, budget: Option<u64>, is_last: bool) -> Cuts {
    /// Number of blocks for which every plan is quick.
    const FEWEST: usize = 1024;
    /// A segment ends up to a block before the best place for it.
    const BLOCKS_OF_A_SEGMENT: usize = 16;

    let wanted = |plan: &Cuts| (plan.starts.len() + 1) * BLOCKS_OF_A_SEGMENT;
    let mut most = FEWEST;
    let (blocks, lowest) = loop {
        let blocks = Blocks::new(trace, most);
        let is_fine = |plan: &Cuts| wanted(plan) <= most || blocks.len() == trace.len();
        // An ample budget has long segments: few blocks will do.
        if let Some(plan) = budget.and_then(|budget| blocks.keep_most(budget))
            && is_fine(&plan)
        {
            return plan;
        }
        let lowest = blocks.lowest();
        if is_fine(&lowest) {
            break (blocks, lowest);
        }
        most = wanted(&lowest).max(2 * most);
    };
    // The blocks are too coarse to use the whole budget, or no plan fits into it.
    if let Some(plan) = budget.and_then(|budget| blocks.keep_most(budget)) {
        return plan;
    }
    Cuts {
        kept_from: match is_last {
            true => lowest.kept_from,
            false => trace.len(),
        },
        ..lowest
    }
}
