//! Weights in four bits, under the names that bitsandbytes gives them.

use std::collections::BTreeMap;
use std::io;

use burn::module::{Module, Param, ParamGroup, ParamId};
use burn::tensor::{DType, Tensor};
use lean_arithmetic::nf4::{BLOCK, DYNAMIC, QUANTILES, SCALES};
use serde::{Deserialize, Serialize};

use super::error::SafetensorsError;
use super::load::Weights;
use super::names::Place;
use super::read::Stored;
use super::write::{Piece, Values};
use crate::operations::{Nf4, Nf4State, PackedWeights, is_piece, packed_weights};
use crate::path::{Path, PathVisitor, WithPaths, path_text};

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

impl Weights {
    /// [`load`](Self::load) from files in which some weights were packed by bitsandbytes, or by [`save`] of a model
    /// that [`Nf4`] had packed. These are packed in the model, whatever the group of `nf4`; its adapters are
    /// attached. The scales are packed, too (`bnb_4bit_use_double_quant`).
    ///
    /// The numbers are those of the file, in f32. bitsandbytes rounds them to the type that the weight had.
    ///
    /// [`save`]: super::save
    ///
    /// # Errors
    ///
    /// Those of [`load`](Self::load); or a weight is packed in another way. The model is dropped.
    pub fn load_nf4<M: Module>(
        mut self,
        nf4: Nf4,
        model: M,
        names: impl Fn(&str) -> String,
    ) -> Result<M, SafetensorsError> {
        let mut states = take_states(&mut self.tensors)?;
        let mut find = Find {
            states: &states,
            names: &names,
            ids: Vec::new(),
        };
        model.visit(&mut WithPaths::new(&mut find));
        let group = ParamGroup::from_ids(find.ids);
        let model = self.load_where(model, |path| {
            let place = Place::of(path, &names);
            (!states.contains_key(&place.name)).then_some(place)
        })?;
        let nf4 = nf4.with_group(group);
        let model = nf4.pack_from(model, |path| states.remove(&names(path)))?;
        match states.into_keys().next() {
            Some(name) => Err(SafetensorsError::Additional { name }),
            None => Ok(model),
        }
    }
}

/// Finds the parameters of states.
struct Find<'a, N> {
    states: &'a BTreeMap<String, Nf4State>,
    names: N,
    ids: Vec<ParamId>,
}

impl<N: Fn(&str) -> String> PathVisitor for Find<'_, N> {
    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        if self.states.contains_key(&(self.names)(&path_text(path))) {
            self.ids.push(param.id);
        }
    }
}

/// A packed weight among tensors, for which a dense one is asked.
pub(super) fn refuse_packed(tensors: &BTreeMap<String, Stored>) -> Result<(), SafetensorsError> {
    let mut packed = tensors
        .keys()
        .filter_map(|name| name.split_once(QUANT_STATE));
    match packed.next() {
        Some((name, _)) => Err(wrong(name, "it is packed: `load_nf4` reads it")),
        None => Ok(()),
    }
}

/// Takes the tensors of packed weights, by the names of the weights.
fn take_states(
    tensors: &mut BTreeMap<String, Stored>,
) -> Result<BTreeMap<String, Nf4State>, SafetensorsError> {
    let packed = tensors
        .keys()
        .filter_map(|name| name.split_once(QUANT_STATE));
    let packed: Vec<_> = packed
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    let mut states = BTreeMap::new();
    for (name, kind) in packed {
        let state = take_state(tensors, &name, &kind)?;
        states.insert(name, state);
    }
    Ok(states)
}

fn take_state(
    tensors: &mut BTreeMap<String, Stored>,
    name: &str,
    kind: &str,
) -> Result<Nf4State, SafetensorsError> {
    if kind != "nf4" {
        return Err(wrong(name, format!("it is in {kind}, and not in nf4")));
    }
    let mut bytes = |ending: &str, dtype: DType| {
        let full = format!("{name}{ending}");
        let Some(stored) = tensors.remove(&full) else {
            return Err(SafetensorsError::Missing { name: full });
        };
        if stored.dtype != dtype {
            let reason = format!("{full} is in {:?}, and not in {dtype:?}", stored.dtype);
            return Err(wrong(name, reason));
        }
        stored.bytes().map_err(|error| wrong(name, error))
    };
    let state = bytes(&format!("{QUANT_STATE}nf4"), DType::U8)?;
    let state: QuantState = serde_json::from_slice(&state).map_err(|error| wrong(name, error))?;
    let (Some(nested_offset), Some(SCALES)) = (state.nested_offset, state.nested_blocksize) else {
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
        if floats(&bytes(ending, DType::F32)?) != known {
            return Err(wrong(name, format!("{name}{ending} has other numbers")));
        }
    }
    let state = Nf4State {
        shape: [rows, columns],
        weight: bytes("", DType::U8)?,
        absmax: bytes(".absmax", DType::U8)?,
        nested_absmax: floats(&bytes(".nested_absmax", DType::F32)?),
        nested_offset: nested_offset as f32,
    };
    Ok(state)
}

/// [`Values`] with the packed weights of a model, by their paths.
pub(super) struct WithPacked<V> {
    values: V,
    packed: PackedWeights,
}

impl<V> WithPacked<V> {
    pub(super) fn new<M: Module>(model: &M, values: V) -> Result<Self, SafetensorsError> {
        let packed = packed_weights(model).map_err(|(path, reason)| wrong(&path, reason))?;
        Ok(Self { values, packed })
    }
}

impl<V: Values> Values for WithPacked<V> {
    fn take<const D: usize>(
        &mut self,
        path: &Path,
        param: &Param<Tensor<D>>,
        dtype: DType,
    ) -> Tensor<D> {
        self.values.take(path, param, dtype)
    }

    fn pieces(&self, path: &Path, name: &str) -> Option<Vec<Piece>> {
        if is_piece(path) {
            return Some(Vec::new());
        }
        let (packed, dtype) = self.packed.get(&path_text(path))?;
        Some(pieces(name, packed.state(), *dtype))
    }
}

/// The tensors that a packed weight is written as.
fn pieces(name: &str, state: Nf4State, dtype: DType) -> Vec<Piece> {
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

fn wrong(name: &str, reason: impl ToString) -> SafetensorsError {
    SafetensorsError::Packed {
        name: name.into(),
        reason: reason.to_string(),
    }
}

impl Stored {
    /// The tensor as it is in the file.
    fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.shape.iter().product::<usize>() * self.dtype.size()];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
