//! Where to cut a forward pass into segments.
//!
//! Two things are in memory when backward runs a segment: what crosses the cuts up to its
//! beginning, and what the tape saves of its own operations. More cuts make the second smaller and
//! the first larger. Of all sets of cuts, [`plan`] looks for one whose highest sum is lowest.
//!
//! Several tensors may cross a cut, as the skip connections of a U-Net do. A tensor is held once,
//! however many cuts it crosses, and is counted at the first. It stays counted for the rest of the
//! pass: where backward has come to its last use, the tensor is freed, but its gradient is there
//! and waits for the operation that made it, and that is as large.

use crate::planner::{blocks::Blocks, operations::Trace};

pub(super) use crate::planner::blocks::Cuts;

/// Plans a forward pass like this one: with the lowest peak; or, within `budget` bytes, with as few
/// operations recomputed as the rule allows that those after some cut are kept.
///
/// The operations after the last cut are kept where they run backward first, if `is_last`.
/// Otherwise the backward pass would hold them while it runs what comes after.
pub(super) fn plan(trace: &Trace, budget: Option<u64>, is_last: bool) -> Cuts {
    /// Number of blocks that is quick to plan, whatever the plan is.
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
    // The blocks are not fine enough for all that fits into the budget, or nothing does.
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
