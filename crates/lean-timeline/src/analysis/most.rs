//! The largest total of each category.

use super::{moment::moments, totals::Totals};
use crate::snapshot::{Category, Snapshot};

/// The largest total of a category.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    /// The total.
    pub bytes: u64,
    /// The first tick with this total.
    pub tick: usize,
}

impl Totals {
    /// The largest total of a category. The temporaries include the workspaces of operations.
    pub fn most(&self, snapshot: &Snapshot, category: Category) -> Most {
        let layer = self.layer(category);
        let mut most = Most { bytes: 0, tick: 0 };
        let mut see = |bytes, tick| {
            if bytes > most.bytes {
                most = Most { bytes, tick };
            }
        };
        for (tick, bytes) in layer.iter().enumerate() {
            see(*bytes, tick);
        }
        if category == Category::Temporaries {
            for moment in moments(snapshot, self) {
                see(layer[moment.tick] + moment.workspace, moment.tick);
            }
        }
        most
    }
}
