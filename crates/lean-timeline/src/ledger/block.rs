//! Pieces of memory, each over its whole life.

use std::collections::HashMap;
use std::ops::Index;

use crate::snapshot::{Category, Holder};

/// Index of a block in its recording.
pub type BlockId = usize;

/// The memory that a tensor occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Its identity: tensors that share it have the same, and no two that exist at a time have the
    /// same.
    pub id: usize,
    /// Its size. A view may show only a part of it.
    pub bytes: u64,
}

/// An operand of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// The block that it is in.
    pub block: BlockId,
    /// Whether the operation holds the only copy of this tensor.
    pub is_consumed: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Purpose {
    /// The first tick.
    from: usize,
    pub(super) category: Category,
    pub(super) parameter: Option<usize>,
}

/// A piece of memory, from the operation that allocated it to its release.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) storage: Storage,
    /// Index of the operation that made it.
    pub(super) operation: usize,
    /// The last parameter among the inputs that its content was computed from.
    pub(super) nearest_parameter: Option<usize>,
    /// Whether it was made within a pass or within the step of a parameter.
    pub(super) is_of_a_step: bool,
    from: usize,
    until: Option<usize>,
    /// Number of tensors in it. Copies of a tensor count as one tensor, each view as another.
    pub(super) tensors: usize,
    /// The first purpose holds from the beginning.
    purposes: Vec<Purpose>,
}

impl Block {
    /// Memory of one tensor, made outside of passes and steps, for no known purpose.
    pub(super) fn new(storage: Storage, operation: usize, from: usize) -> Self {
        Self {
            storage,
            operation,
            nearest_parameter: None,
            is_of_a_step: false,
            from,
            until: None,
            tensors: 1,
            purposes: Vec::new(),
        }
    }

    pub(super) fn purpose(&self) -> Option<Purpose> {
        self.purposes.last().copied()
    }

    pub(super) fn is(&self, category: Category) -> bool {
        self.purpose().is_some_and(|of| of.category == category)
    }

    pub(super) fn is_live(&self) -> bool {
        self.until.is_none()
    }

    /// One holder for each purpose; `end` is the number of ticks.
    fn holders(&self, end: usize) -> impl Iterator<Item = Holder> + '_ {
        // It was freed, or the recording ended, before a purpose was known.
        let unknown = self.purposes.is_empty().then_some(Purpose {
            from: self.from,
            category: match self.is_of_a_step {
                true => Category::Temporaries,
                false => Category::Other,
            },
            parameter: None,
        });
        let ends = self.purposes.iter().skip(1).map(|purpose| purpose.from);
        let ends = ends.chain([self.until.unwrap_or(end)]);
        let purposes = self.purposes.iter().copied().chain(unknown).zip(ends);
        // A purpose may be replaced at once.
        let lasting = purposes.filter(|(purpose, until)| purpose.from < *until);
        lasting.map(|(purpose, until)| Holder {
            bytes: self.storage.bytes,
            category: purpose.category,
            parameter: purpose.parameter.or(self.nearest_parameter),
            operation: self.operation,
            from: purpose.from,
            until,
        })
    }
}

/// All blocks of a recording, by number and by the storage that they occupy.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    /// The block that occupies a storage now, by [`Storage::id`].
    by_storage: HashMap<usize, BlockId>,
    /// Heap bytes of the lists of purposes.
    purpose_bytes: usize,
}

impl Index<BlockId> for Blocks {
    type Output = Block;

    fn index(&self, block: BlockId) -> &Block {
        &self.blocks[block]
    }
}

impl Blocks {
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// All holders, in order of their first tick.
    pub(super) fn holders(&self, end: usize) -> Vec<Holder> {
        let holders = self.blocks.iter().flat_map(|block| block.holders(end));
        let mut holders: Vec<Holder> = holders.collect();
        holders.sort_by_key(|held| held.from);
        holders
    }

    /// The block that occupies `storage`. A block of another size has been freed unseen, and is not
    /// returned.
    pub(super) fn find(&self, storage: Storage) -> Option<BlockId> {
        let block = self.at(storage.id)?;
        (self.blocks[block].storage == storage).then_some(block)
    }

    /// The block that occupies the storage with this identity.
    pub(super) fn at(&self, id: usize) -> Option<BlockId> {
        self.by_storage.get(&id).copied()
    }

    pub(super) fn insert(&mut self, block: Block) -> BlockId {
        self.by_storage.insert(block.storage.id, self.blocks.len());
        self.blocks.push(block);
        self.blocks.len() - 1
    }

    /// Counts one more tensor in a block.
    pub(super) fn add_tensor(&mut self, block: BlockId) {
        self.blocks[block].tensors += 1;
    }

    /// Counts one tensor less in a block. Returns whether the block is to be freed.
    pub(super) fn remove_tensor(&mut self, block: BlockId) -> bool {
        let block = &mut self.blocks[block];
        block.tensors -= 1;
        // The result of an operation may have replaced it before.
        block.tensors == 0 && block.is_live()
    }

    /// Ends a block whose storage the next block takes over.
    pub(super) fn replace(&mut self, block: BlockId, tick: usize) {
        self.blocks[block].until = Some(tick);
    }

    /// Ends a block, and frees its storage.
    pub(super) fn free(&mut self, block: BlockId, tick: usize) {
        self.replace(block, tick);
        let id = self.blocks[block].storage.id;
        if self.at(id) == Some(block) {
            self.by_storage.remove(&id);
        }
    }

    /// Sets what a block is for: from its beginning, if it has no purpose yet, else from `now` on.
    pub(super) fn assign(
        &mut self,
        block: BlockId,
        category: Category,
        parameter: Option<usize>,
        now: usize,
    ) {
        let block = &mut self.blocks[block];
        let (begin, capacity) = (block.from, block.purposes.capacity());
        let from = match block.purposes.last_mut() {
            // The purpose stays, and its parameter may be known by now.
            Some(last) if last.category == category => {
                last.parameter = parameter.or(last.parameter);
                return;
            }
            Some(_) => now,
            None => begin,
        };
        block.purposes.push(Purpose {
            from,
            category,
            parameter,
        });
        self.purpose_bytes += (block.purposes.capacity() - capacity) * size_of::<Purpose>();
    }

    /// Forgets the blocks that have ended. The others exist from the first tick on, for what they are
    /// for now.
    pub(super) fn keep_live(&mut self) {
        for mut block in std::mem::take(self).blocks {
            if block.is_live() {
                let purpose = block
                    .purpose()
                    .map(|purpose| Purpose { from: 0, ..purpose });
                block.purposes = Vec::from_iter(purpose);
                block.from = 0;
                self.purpose_bytes += block.purposes.capacity() * size_of::<Purpose>();
                self.insert(block);
            }
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        // A hash table of the standard library has one control byte per slot, and fills at most
        // seven eighths of its slots.
        let slots = self.by_storage.capacity() * 8 / 7;
        self.blocks.capacity() * size_of::<Block>()
            + slots * (size_of::<(usize, BlockId)>() + 1)
            + self.purpose_bytes
    }
}
