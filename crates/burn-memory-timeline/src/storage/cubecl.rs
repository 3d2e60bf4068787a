//! cubecl hands out pieces of the pools that it keeps on the device.

use std::fmt::{self, Write};

use burn_cubecl::{CubeRuntime, tensor::CubeTensor};

use super::{HasStorage, Storage};

impl<R: CubeRuntime> HasStorage for CubeTensor<R> {
    fn storage(&self) -> Storage {
        // The number of a handle is private in cubecl 0.10; what it prints for debugging begins with
        // it.
        let mut number = FirstNumber::default();
        let _ = write!(number, "{:?}", self.handle.memory);
        Storage {
            // Not 0, where the first handle would be nobody.
            id: number.value + 1,
            bytes: self.handle.size(),
        }
    }
}

/// The first number in what is written.
#[derive(Default)]
struct FirstNumber {
    value: usize,
    is_begun: bool,
}

impl Write for FirstNumber {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character.to_digit(10) {
                Some(digit) => {
                    self.is_begun = true;
                    self.value = self.value * 10 + digit as usize;
                }
                // Stops the writing.
                None if self.is_begun => return Err(fmt::Error),
                None => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_first_number() {
        let mut number = FirstNumber::default();
        assert!(write!(number, "Handle {{ id: {}, page: {} }}", 4711, 3).is_err());
        assert_eq!(number.value, 4711);
    }
}
