//! The memory of Flex's tensors, on the heap.

use burn_flex::FlexTensor;

use super::{HasStorage, Storage};

impl HasStorage for FlexTensor {
    fn storage(&self) -> Storage {
        let bytes = self.bytes();
        Storage {
            id: bytes.as_ptr().addr(),
            bytes: bytes.len() as u64,
        }
    }
}
