//! Gives addresses to holders, which have none: as an allocator that takes the smallest gap that
//! fits. The page draws them, and PyTorch's `segsum` adds them up.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct Layout {
    /// Bytes from the first address on, in use and not.
    pub(super) bytes: u64,
    /// Size and address of the gaps below, no two side by side.
    by_size: BTreeSet<(u64, u64)>,
    by_address: BTreeMap<u64, u64>,
}

impl Layout {
    /// The first address. 0 is no address.
    pub(super) const BASE: u64 = 1 << 32;

    pub(super) fn end(&self) -> u64 {
        Self::BASE + self.bytes
    }

    /// Gives an address to so many bytes.
    pub(super) fn place(&mut self, bytes: u64) -> u64 {
        match self.by_size.range((bytes, 0)..).next().copied() {
            Some((size, address)) => {
                self.close(address, size);
                if size > bytes {
                    self.open(address + bytes, size - bytes);
                }
                address
            }
            None => {
                self.bytes += bytes;
                self.end() - bytes
            }
        }
    }

    /// Takes an address back.
    pub(super) fn release(&mut self, mut address: u64, mut bytes: u64) {
        let below = self.by_address.range(..address).next_back();
        if let Some((below, size)) = below.map(|(below, size)| (*below, *size))
            && below + size == address
        {
            self.close(below, size);
            (address, bytes) = (below, bytes + size);
        }
        if let Some(size) = self.by_address.get(&(address + bytes)).copied() {
            self.close(address + bytes, size);
            bytes += size;
        }
        self.open(address, bytes);
    }

    fn open(&mut self, address: u64, size: u64) {
        self.by_size.insert((size, address));
        self.by_address.insert(address, size);
    }

    fn close(&mut self, address: u64, size: u64) {
        self.by_size.remove(&(size, address));
        self.by_address.remove(&address);
    }
}
