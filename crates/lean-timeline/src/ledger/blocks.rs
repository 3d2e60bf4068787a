//! All blocks of a recording, by number and by the storage that they occupy.

use std::{collections::HashMap, ops::Index};

use super::block::{Block, BlockId, Purpose, Storage};
use crate::snapshot::Category;

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

    pub(super) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter()
    }

    /// The block that occupies `storage`. A block of another size has been freed unseen, and is not
    /// returned.
    pub(super) fn find(&self, storage: Storage) -> Option<BlockId> {
        let block = *self.by_storage.get(&storage.id)?;
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
        if self.by_storage.get(&id) == Some(&block) {
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
        let purpose = Purpose {
            category,
            parameter,
        };
        let block = &mut self.blocks[block];
        let capacity = block.purposes.capacity();
        match block.purposes.last_mut() {
            None => block.purposes.push((block.from, purpose)),
            // The purpose stays, and its parameter may be known by now.
            Some((_, last)) if last.category == category => {
                last.parameter = parameter.or(last.parameter);
            }
            Some(_) => block.purposes.push((now, purpose)),
        }
        self.purpose_bytes +=
            (block.purposes.capacity() - capacity) * size_of::<(usize, Purpose)>();
    }

    /// Forgets the blocks that have ended. The others exist from the first tick on, for what they are
    /// for now.
    pub(super) fn keep_live(&mut self) {
        for mut block in std::mem::take(self).blocks {
            if block.is_live() {
                let purpose = block.purpose().map(|purpose| (0, purpose));
                block.purposes = Vec::from_iter(purpose);
                block.from = 0;
                self.purpose_bytes += block.purposes.capacity() * size_of::<(usize, Purpose)>();
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
