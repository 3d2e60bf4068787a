//! The memory of wgpu's and CUDA's tensors: a part of the pools that cubecl keeps on the device.

use burn_cubecl::{CubeRuntime, tensor::CubeTensor};
use cubecl_runtime::memory_management::ManagedMemoryHandle;

use super::{HasStorage, Storage};

impl<R: CubeRuntime> HasStorage for CubeTensor<R> {
    fn storage(&self) -> Storage {
        Storage {
            id: identity(&self.handle.memory),
            bytes: self.handle.size(),
        }
    }
}

/// The number that cubecl gives to a piece of memory, counted over the whole process.
///
/// The number is private in cubecl 0.10. The `Debug` text of the handle is the only way to it.
///
/// # Panics
///
/// If the text is not that of cubecl 0.10.0. A wrong number would attribute the memory of one
/// tensor to another.
fn identity(memory: &ManagedMemoryHandle) -> usize {
    let text = format!("{memory:?}");
    parse(&text).unwrap_or_else(|| panic!("{}", unexpected(&text)))
}

const BEFORE: &str =
    "ManagedMemoryHandle { descriptor: ManagedMemoryDescriptor { id: ManagedMemoryId { value: ";
const AFTER: &str = " }, location: ";

/// The number in the `Debug` text of a handle; `None` if the text is another than expected.
fn parse(text: &str) -> Option<usize> {
    let (number, _) = text.strip_prefix(BEFORE)?.split_once(AFTER)?;
    number.parse().ok()
}

fn unexpected(text: &str) -> String {
    format!(
        "burn-gradient-release-timeline cannot tell which memory a tensor occupies: it reads that from the \
         `Debug` text of cubecl-runtime's `ManagedMemoryHandle`, expected `{BEFORE}<number>{AFTER}...`, \
         and found `{text}`. Build with the cubecl-runtime that burn-gradient-release-timeline asks for (`cargo \
         update -p cubecl-runtime --precise 0.10.0`), or record on Flex"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_read_from_the_text_of_cubecl_0_10_0() {
        let text = "ManagedMemoryHandle { descriptor: ManagedMemoryDescriptor { id: ManagedMemoryId { \
                    value: 4711 }, location: MemoryLocation { pool: 1, page: 2, slice: 3, init: 1 } }, \
                    handle_count: () }";
        assert_eq!(parse(text), Some(4711));
    }

    #[test]
    fn another_text_is_not_read() {
        let changed = [
            "",
            "4711",
            // Another number comes first.
            "ManagedMemoryHandle { descriptor: ManagedMemoryDescriptor { location: MemoryLocation { \
             pool: 1 }, id: ManagedMemoryId { value: 4711 } }, handle_count: () }",
            "ManagedMemoryHandle { descriptor: ManagedMemoryDescriptor { id: ManagedMemoryId { device: \
             0, value: 4711 }, location: MemoryLocation { pool: 1 } }, handle_count: () }",
            // The identity is more than this number.
            "ManagedMemoryHandle { descriptor: ManagedMemoryDescriptor { id: ManagedMemoryId { value: \
             4711, stream: 1 }, location: MemoryLocation { pool: 1 } }, handle_count: () }",
            // No number, and one that does not fit.
            "ManagedMemoryHandle { descriptor: ManagedMemoryDescriptor { id: ManagedMemoryId { value: \
             }, location: MemoryLocation { pool: 1 } }, handle_count: () }",
            "ManagedMemoryHandle { descriptor: ManagedMemoryDescriptor { id: ManagedMemoryId { value: \
             99999999999999999999999 }, location: MemoryLocation { pool: 1 } }, handle_count: () }",
        ];
        for text in changed {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_panic_says_what_was_found_and_what_to_do() {
        let message = unexpected("Handle(7)");
        for part in ["`Handle(7)`", "--precise 0.10.0", "Flex"] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(message.lines().count(), 1);
    }

    /// Fails when cubecl changes the text, or what its number means.
    #[test]
    fn the_handles_of_this_cubecl_are_told_apart() {
        let (one, other) = (ManagedMemoryHandle::new(), ManagedMemoryHandle::new());
        assert_eq!(identity(&one), identity(&one.clone()));
        assert_ne!(identity(&one), identity(&other));
        let elsewhere = std::thread::spawn(|| identity(&ManagedMemoryHandle::new()));
        let elsewhere = elsewhere
            .join()
            .expect("another thread has the same counter");
        assert!(![identity(&one), identity(&other)].contains(&elsewhere));
    }
}
