//! Weights in four bits, under the names that bitsandbytes gives them.

use std::collections::BTreeMap;

use burn::tensor::DType;
use lean_arithmetic::nf4::{BLOCK, DYNAMIC, QUANTILES, SCALES};
use serde::{Deserialize, Serialize};

use super::error::SafetensorsError;
use super::names::Piece;
use super::read::Stored;
use crate::operations::Nf4State;

/// The ending of the tensor that says how a weight is packed.
const QUANT_STATE: &str = ".quant_state.bitsandbytes__";

/// What is in it, as JSON in bytes.
#[derive(Debug, Deserialize, Serialize)]
struct QuantState {
    quant_type: String,
    blocksize: usize,
    /// The type that the weight had.
    dtype: String,
    shape: Vec<usize>,
    /// Of scales that are packed, too.
    nested_blocksize: Option<usize>,
    nested_dtype: Option<String>,
    /// As Python writes it: all digits of the f32.
    nested_offset: Option<f64>,
}

/// The names of packed weights among tensors, and how each is packed.
fn packed_in(tensors: &BTreeMap<String, Stored>) -> impl Iterator<Item = (&str, &str)> {
    tensors
        .keys()
        .filter_map(|name| name.split_once(QUANT_STATE))
}

/// A packed weight among tensors, for which a dense one is asked.
pub(super) fn refuse_packed(tensors: &BTreeMap<String, Stored>) -> Result<(), SafetensorsError> {
    match packed_in(tensors).next() {
        Some((name, _)) => Err(wrong(name, "it is packed: `load_nf4` reads it")),
        None => Ok(()),
    }
}

/// A packed weight in files, of which all is checked but the numbers, which are not read yet.
pub(super) struct StoredNf4 {
    shape: [usize; 2],
    weight: Stored,
    absmax: Stored,
    nested_absmax: Stored,
    nested_offset: f32,
}

impl StoredNf4 {
    /// Takes the tensors of packed weights, by the names of the weights.
    pub(super) fn take_all(
        tensors: &mut BTreeMap<String, Stored>,
    ) -> Result<BTreeMap<String, Self>, SafetensorsError> {
        let packed: Vec<_> = packed_in(tensors)
            .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
            .collect();
        let stored = packed.into_iter().map(|(name, kind)| {
            let stored = Self::take(tensors, &name, &kind)?;
            Ok((name, stored))
        });
        stored.collect()
    }

    fn take(
        tensors: &mut BTreeMap<String, Stored>,
        name: &str,
        kind: &str,
    ) -> Result<Self, SafetensorsError> {
        if kind != "nf4" {
            return Err(wrong(name, format!("it is in {kind}, and not in nf4")));
        }
        let mut part = |ending: &str, dtype: DType| {
            let full = format!("{name}{ending}");
            let Some(stored) = tensors.remove(&full) else {
                return Err(SafetensorsError::Missing { name: full });
            };
            if stored.dtype != dtype {
                let reason = format!("{full} is in {:?}, and not in {dtype:?}", stored.dtype);
                return Err(wrong(name, reason));
            }
            Ok(stored)
        };
        let state = bytes(name, &part(&format!("{QUANT_STATE}nf4"), DType::U8)?)?;
        let state: QuantState =
            serde_json::from_slice(&state).map_err(|error| wrong(name, error))?;
        let (Some(nested_offset), Some(SCALES)) = (state.nested_offset, state.nested_blocksize)
        else {
            let reason = "its scales are not packed by 256 (`bnb_4bit_use_double_quant`)";
            return Err(wrong(name, reason));
        };
        if state.blocksize != BLOCK || state.quant_type != "nf4" {
            let reason = format!(
                "it is of {} in blocks of {}",
                state.quant_type, state.blocksize
            );
            return Err(wrong(name, reason + "; known is nf4 in blocks of 64"));
        }
        let [rows, columns] = state.shape[..] else {
            return Err(wrong(
                name,
                format!("it is no matrix, but {:?}", state.shape),
            ));
        };
        for (ending, known) in [
            (".quant_map", &QUANTILES[..]),
            (".nested_quant_map", DYNAMIC.as_slice()),
        ] {
            if floats(&bytes(name, &part(ending, DType::F32)?)?) != known {
                return Err(wrong(name, format!("{name}{ending} has other numbers")));
            }
        }
        Ok(Self {
            shape: [rows, columns],
            weight: part("", DType::U8)?,
            absmax: part(".absmax", DType::U8)?,
            nested_absmax: part(".nested_absmax", DType::F32)?,
            nested_offset: nested_offset as f32,
        })
    }

    pub(super) fn read(&self, name: &str) -> Result<Nf4State, SafetensorsError> {
        Ok(Nf4State {
            shape: self.shape,
            weight: bytes(name, &self.weight)?,
            absmax: bytes(name, &self.absmax)?,
            nested_absmax: floats(&bytes(name, &self.nested_absmax)?),
            nested_offset: self.nested_offset,
        })
    }
}

/// A tensor of a packed weight, as it is in the file.
fn bytes(name: &str, stored: &Stored) -> Result<Vec<u8>, SafetensorsError> {
    let mut bytes = vec![0; stored.shape.iter().product::<usize>() * stored.dtype.size()];
    let read = stored.read_exact(&mut bytes);
    read.map_err(|error| wrong(name, error))?;
    Ok(bytes)
}

/// The tensors that a packed weight is written as.
pub(super) fn pieces(name: &str, state: Nf4State, dtype: DType) -> Vec<Piece> {
    let dtype = match dtype {
        DType::BF16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    };
    let json = QuantState {
        quant_type: "nf4".into(),
        blocksize: BLOCK,
        dtype: dtype.into(),
        shape: state.shape.to_vec(),
        nested_blocksize: Some(SCALES),
        nested_dtype: Some("float32".into()),
        nested_offset: Some(state.nested_offset.into()),
    };
    let json = serde_json::to_vec(&json).expect("it is made of texts and finite numbers");
    let piece = |ending: &str, dtype: DType, bytes: Vec<u8>| Piece {
        name: format!("{name}{ending}"),
        dtype,
        shape: vec![bytes.len() / dtype.size()],
        bytes,
    };
    let mut weight = piece("", DType::U8, state.weight);
    weight.shape.push(1);
    let table = DYNAMIC.as_slice();
    vec![
        weight,
        piece(".absmax", DType::U8, state.absmax),
        piece(
            ".nested_absmax",
            DType::F32,
            of_floats(&state.nested_absmax),
        ),
        piece(".quant_map", DType::F32, of_floats(&QUANTILES)),
        piece(".nested_quant_map", DType::F32, of_floats(table)),
        piece(&format!("{QUANT_STATE}nf4"), DType::U8, json),
    ]
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (floats, _) = bytes.as_chunks();
    floats.iter().copied().map(f32::from_le_bytes).collect()
}

fn of_floats(floats: &[f32]) -> Vec<u8> {
    floats
        .iter()
        .flat_map(|float| float.to_le_bytes())
        .collect()
}

pub(super) fn wrong(name: &str, reason: impl ToString) -> SafetensorsError {
    SafetensorsError::Packed {
        name: name.into(),
        reason: reason.to_string(),
    }
}
