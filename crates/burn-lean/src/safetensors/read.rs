//! Tensors in files, found by the heads of these, and read when they are needed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex};

use burn::tensor::{Bytes, DType, TensorData};
use safetensors::tensor::Metadata;

use super::BLOCK;
use super::error::{SafetensorsError, from_file};
use crate::lock::lock;

/// The longest head, as the format has it.
const LONGEST: u64 = 100_000_000;

/// A tensor in a file.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    file: Arc<Mutex<File>>,
    /// Where in the file it begins.
    start: u64,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
}

/// The tensors of a file, whose head alone is read.
pub(crate) fn tensors_of(path: &Path) -> Result<BTreeMap<String, Stored>, SafetensorsError> {
    let of_file = |error| SafetensorsError::file(path, error);
    let mut file = File::open(path).map_err(of_file)?;
    let whole = file.metadata().map_err(of_file)?.len();
    let is_cut = || SafetensorsError::contents(path, "it is cut, or no safetensors file");
    let mut length = [0; 8];
    if whole < 8 {
        return Err(is_cut());
    }
    file.read_exact(&mut length).map_err(of_file)?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST.min(whole - 8) {
        return Err(is_cut());
    }
    let mut head = vec![0; length as usize];
    file.read_exact(&mut head).map_err(of_file)?;
    let head: Metadata =
        serde_json::from_slice(&head).map_err(|error| SafetensorsError::contents(path, error))?;
    let (start, needed) = (8 + length, head.data_len() as u64);
    if whole != start + needed {
        let reason = format!(
            "it has {whole} bytes, and not the {} that its head tells",
            start + needed
        );
        return Err(SafetensorsError::contents(path, reason));
    }
    let file = Arc::new(Mutex::new(file));
    let tensors = head.tensors().into_iter().map(|(name, info)| {
        let stored = Stored {
            file: file.clone(),
            start: start + info.data_offsets.0 as u64,
            dtype: from_file(&name, info.dtype)?,
            shape: info.shape.clone(),
        };
        Ok((name, stored))
    });
    tensors.collect()
}

impl Stored {
    /// The tensor in another type, or transposed, which needs a block more than the result.
    pub(super) fn read(&self, is_transposed: bool, dtype: DType) -> io::Result<TensorData> {
        let (columns, shape) = match self.shape[..] {
            [rows, columns] if is_transposed => (columns, vec![columns, rows]),
            _ => (1, self.shape.clone()),
        };
        // Burn copies a vector of bytes, as it is not aligned: but not one of words.
        let bytes = match dtype.size() {
            2 => Bytes::from_elems(self.elements(columns, dtype, u16::from_ne_bytes)?),
            _ => Bytes::from_elems(self.elements(columns, dtype, u32::from_ne_bytes)?),
        };
        Ok(TensorData::from_bytes(bytes, shape, dtype))
    }

    /// Reads the tensor as it is in the file.
    #[cfg(feature = "operations")]
    pub(super) fn read_exact(&self, bytes: &mut [u8]) -> io::Result<()> {
        let mut file = lock(&self.file);
        file.seek(SeekFrom::Start(self.start))?;
        file.read_exact(bytes)
    }

    /// The elements as words. Those of a matrix of so many columns are transposed.
    fn elements<const N: usize, E: Clone + Default>(
        &self,
        columns: usize,
        dtype: DType,
        word: fn([u8; N]) -> E,
    ) -> io::Result<Vec<E>> {
        let elements: usize = self.shape.iter().product();
        let (rows, row) = (elements / columns.max(1), columns * self.dtype.size());
        let at_once = (BLOCK / row.max(1)).clamp(1, rows.max(1));
        let mut all = vec![E::default(); elements];
        let mut file = lock(&self.file);
        file.seek(SeekFrom::Start(self.start))?;
        for first in (0..rows).step_by(at_once) {
            let mut block = vec![0; at_once.min(rows - first) * row];
            file.read_exact(&mut block)?;
            if dtype != self.dtype {
                let length = block.len() / self.dtype.size();
                let data = TensorData::from_bytes_vec(block, [length], self.dtype);
                block = data.convert_dtype(dtype).as_bytes().to_vec();
            }
            let (block, _) = block.as_chunks::<N>();
            for column in 0..columns {
                let of_column = block[column..].iter().step_by(columns);
                let to = &mut all[column * rows + first..];
                for (to, from) in to.iter_mut().zip(of_column) {
                    *to = word(*from);
                }
            }
        }
        Ok(all)
    }
}
