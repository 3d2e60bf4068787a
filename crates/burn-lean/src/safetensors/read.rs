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
        let (from, to) = (self.dtype.size(), dtype.size());
        let (rows, columns, mut shape) = match self.shape[..] {
            [rows, columns] if is_transposed => (rows, columns, vec![columns, rows]),
            _ => (self.shape.iter().product(), 1, self.shape.clone()),
        };
        let mut all = vec![0; rows * columns * to];
        let mut file = lock(&self.file);
        file.seek(SeekFrom::Start(self.start))?;
        if columns == 1 && dtype == self.dtype {
            file.read_exact(&mut all)?;
        } else {
            let at_once = (BLOCK / (columns * from).max(1)).clamp(1, rows.max(1));
            for first in (0..rows).step_by(at_once) {
                let rows_here = at_once.min(rows - first);
                let mut block = vec![0; rows_here * columns * from];
                file.read_exact(&mut block)?;
                let block = TensorData::from_bytes(
                    Bytes::from_bytes_vec(block),
                    [rows_here, columns],
                    self.dtype,
                );
                let block = block.convert_dtype(dtype).into_bytes();
                match to {
                    2 => transpose::<2>(&block, &mut all, columns, first, rows),
                    _ => transpose::<4>(&block, &mut all, columns, first, rows),
                }
            }
        }
        if self.shape.is_empty() {
            shape = vec![1];
        }
        Ok(TensorData::from_bytes(
            Bytes::from_bytes_vec(all),
            shape,
            dtype,
        ))
    }
}

/// Puts rows of a matrix of `columns` and `rows`, from `first` on, where its transpose has them.
fn transpose<const N: usize>(
    block: &[u8],
    all: &mut [u8],
    columns: usize,
    first: usize,
    rows: usize,
) {
    let (block, _) = block.as_chunks::<N>();
    let (all, _) = all.as_chunks_mut::<N>();
    let rows_here = block.len() / columns.max(1);
    for column in 0..columns {
        let of_column = block[column..].iter().step_by(columns);
        let at = column * rows + first;
        for (to, from) in all[at..at + rows_here].iter_mut().zip(of_column) {
            *to = *from;
        }
    }
}
