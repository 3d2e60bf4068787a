//! A file of a model's weights.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path as FilePath;

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};
use burn_pack::AtomicFile;
use safetensors::tensor::{Metadata, TensorInfo};

use super::BLOCK;
use super::error::{SafetensorsError, to_file};
use super::names::{Piece, Place, check_floats};
#[cfg(feature = "operations")]
use super::nf4;
#[cfg(feature = "operations")]
use crate::operations::{PackedWeights, packed_weights};
#[cfg(feature = "optim")]
use crate::optimizer::{MasterWeights, ReleaseOptimizer};
use crate::path::{Path, PathVisitor, WithPaths};
#[cfg(feature = "operations")]
use crate::path::{is_packed, path_text};

/// Writes the parameters of a model into a file. If this fails, the file is as it was before.
///
/// `names` is the same function as for [`load`](super::Weights::load). `dtype` gives the type of a
/// tensor in the file, by that name and the parameter's own type. Weights in [four
/// bits](crate::operations::Nf4) are written as bitsandbytes and transformers write them, and
/// [read](super::Weights::load_nf4).
///
/// # Errors
///
/// The file cannot be written, a weight in four bits has an adapter, two parameters have one name, a type
/// is not F32, BF16 or F16, or the model has parameters that are not floats.
pub fn save<M: Module>(
    model: &M,
    file: impl AsRef<FilePath>,
    names: impl Fn(&str) -> String,
    dtype: impl Fn(&str, DType) -> DType,
) -> Result<(), SafetensorsError> {
    check_floats(model)?;
    let place = |path: &Path| Some(Place::of(path, &names));
    let values = with_packed(model, OwnValues)?;
    write(model, file.as_ref(), place, dtype, values)
}

/// [`save`] with the bits that [`Bf16Weights`](crate::optim::Bf16Weights) keeps in the states of the
/// optimizer: where `dtype` gives F32, the file has the master weights. It takes one parameter in f32 more.
///
/// # Errors
///
/// Those of [`save`], and [`Interrupted`](crate::ReleaseError::Interrupted).
#[cfg(feature = "optim")]
pub fn save_master_weights<M: Module>(
    model: &M,
    optim: &ReleaseOptimizer,
    file: impl AsRef<FilePath>,
    names: impl Fn(&str) -> String,
    dtype: impl Fn(&str, DType) -> DType,
) -> Result<(), SafetensorsError> {
    check_floats(model)?;
    let place = |path: &Path| Some(Place::of(path, &names));
    let values = with_packed(model, MasterWeights::of(optim)?)?;
    write(model, file.as_ref(), place, dtype, values)
}

/// The values of a model whose weights may be packed.
#[cfg(feature = "operations")]
fn with_packed<M: Module, V>(model: &M, values: V) -> Result<WithPacked<V>, SafetensorsError> {
    let packed = packed_weights(model).map_err(|(path, reason)| nf4::wrong(&path, reason))?;
    Ok(WithPacked { values, packed })
}

#[cfg(not(feature = "operations"))]
fn with_packed<M: Module, V>(_model: &M, values: V) -> Result<V, SafetensorsError> {
    Ok(values)
}

/// Where numbers come from.
pub(crate) trait Values {
    /// The numbers of a parameter, for a file that has them in this type.
    fn take<const D: usize>(
        &mut self,
        path: &Path,
        param: &Param<Tensor<D>>,
        dtype: DType,
    ) -> Tensor<D>;

    /// The tensors that are written in the place of a parameter that has this name, if it is not one tensor.
    fn pieces(&self, _path: &Path, _name: &str) -> Option<Vec<Piece>> {
        None
    }
}

/// From the parameters.
pub(crate) struct OwnValues;

impl Values for OwnValues {
    fn take<const D: usize>(&mut self, _: &Path, param: &Param<Tensor<D>>, _: DType) -> Tensor<D> {
        param.base().inner()
    }
}

#[cfg(feature = "optim")]
impl Values for MasterWeights {
    fn take<const D: usize>(
        &mut self,
        path: &Path,
        param: &Param<Tensor<D>>,
        dtype: DType,
    ) -> Tensor<D> {
        // The parameter is the number of its type that is nearest to the master weight.
        match param.base().dtype() == dtype {
            true => param.base().inner(),
            false => self.of_param(path, param),
        }
    }
}

/// [`Values`] with the packed weights of a model, by their paths.
#[cfg(feature = "operations")]
struct WithPacked<V> {
    values: V,
    packed: PackedWeights,
}

#[cfg(feature = "operations")]
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
        if is_packed(path) {
            return Some(Vec::new());
        }
        let (packed, dtype) = self.packed.get(&path_text(path))?;
        Some(nf4::pieces(name, packed.state(), *dtype))
    }
}

/// Writes the parameters that have a place.
pub(crate) fn write<M: Module>(
    model: &M,
    path: &FilePath,
    place: impl Fn(&Path) -> Option<Place>,
    dtype: impl Fn(&str, DType) -> DType,
    values: impl Values,
) -> Result<(), SafetensorsError> {
    let mut plan = Plan {
        place: &place,
        values: &values,
        dtype,
        tensors: Vec::new(),
        error: None,
    };
    model.visit(&mut WithPaths::new(&mut plan));
    if let Some(error) = plan.error {
        return Err(error);
    }
    let contents = |error: String| SafetensorsError::contents(path, error);
    let (head, starts) = plan_file(plan.tensors).map_err(|error| contents(error.to_string()))?;
    // Beside the file, and renamed when it is whole.
    let (unfinished, file) =
        AtomicFile::create(path).map_err(|error| contents(error.to_string()))?;
    let mut blocks = Blocks {
        place,
        values,
        file,
        starts,
        error: None,
    };
    blocks.write_head(&head);
    model.visit(&mut WithPaths::new(&mut blocks));
    let written = blocks.error.map_or_else(|| blocks.file.sync_all(), Err);
    written.map_err(|error| SafetensorsError::file(path, error))?;
    // Else Windows would not rename it.
    drop(blocks.file);
    unfinished
        .commit()
        .map_err(|error| contents(error.to_string()))
}

/// What a tensor will be in the file.
struct Planned {
    name: String,
    dtype: DType,
    info: TensorInfo,
}

impl From<Piece> for Planned {
    fn from(piece: Piece) -> Self {
        let dtype = match piece.dtype {
            DType::U8 => safetensors::Dtype::U8,
            _ => safetensors::Dtype::F32,
        };
        Self {
            name: piece.name,
            dtype: piece.dtype,
            info: TensorInfo {
                dtype,
                shape: piece.shape,
                data_offsets: (0, 0),
            },
        }
    }
}

struct Plan<'a, P, T, V> {
    place: P,
    values: &'a V,
    dtype: T,
    tensors: Vec<Planned>,
    /// The first one: Burn's traversal cannot fail.
    error: Option<SafetensorsError>,
}

impl<P, T, V: Values> PathVisitor for Plan<'_, P, T, V>
where
    P: Fn(&Path) -> Option<Place>,
    T: Fn(&str, DType) -> DType,
{
    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        let Some(place) = (self.place)(path) else {
            return;
        };
        if let Some(pieces) = self.values.pieces(path, &place.name) {
            self.tensors.extend(pieces.into_iter().map(Planned::from));
            return;
        }
        let dtype = (self.dtype)(&place.name, param.base().dtype());
        match to_file(&place.name, dtype) {
            Ok(of_file) => self.tensors.push(Planned {
                dtype,
                info: TensorInfo {
                    dtype: of_file,
                    shape: place.shape(&param.lazy_shape()),
                    data_offsets: (0, 0),
                },
                name: place.name,
            }),
            Err(error) => drop(self.error.get_or_insert(error)),
        }
    }
}

/// Where in a file each tensor begins, and in what type it is there.
type Starts = BTreeMap<String, (u64, DType)>;

/// The head of a file, with its length before it.
fn plan_file(mut tensors: Vec<Planned>) -> io::Result<(Vec<u8>, Starts)> {
    // Wide types first, so that each is aligned, as Python's writer has it.
    tensors.sort_by(|one, other| {
        let size = other.dtype.size().cmp(&one.dtype.size());
        size.then_with(|| one.name.cmp(&other.name))
    });
    let (mut end, mut starts) = (0, BTreeMap::new());
    let mut infos = Vec::new();
    for Planned {
        name,
        dtype,
        mut info,
    } in tensors
    {
        let start = end;
        end += info.shape.iter().product::<usize>() * dtype.size();
        info.data_offsets = (start, end);
        if starts.insert(name.clone(), (start as u64, dtype)).is_some() {
            let reason = format!("two parameters have the name {name}");
            return Err(io::Error::other(reason));
        }
        infos.push((name, info));
    }
    // Python's transformers ask for it.
    let format = [("format".to_owned(), "pt".to_owned())];
    let head = Metadata::new(Some(format.into()), infos).map_err(io::Error::other)?;
    let mut head = serde_json::to_vec(&head)?;
    head.resize(head.len().next_multiple_of(8), b' ');
    let length = head.len() as u64;
    head.splice(..0, length.to_le_bytes());
    for (start, _) in starts.values_mut() {
        *start += 8 + length;
    }
    Ok((head, starts))
}

/// Writes tensors where they belong.
struct Blocks<P, V> {
    place: P,
    values: V,
    file: File,
    starts: Starts,
    /// The first one: Burn's traversal cannot fail.
    error: Option<io::Error>,
}

impl<P, V> Blocks<P, V> {
    fn write_head(&mut self, head: &[u8]) {
        self.error = self.file.write_all(head).err();
    }

    fn write_piece(&mut self, piece: &Piece) -> io::Result<()> {
        let (start, _) = self.starts[&piece.name];
        self.file.seek(SeekFrom::Start(start))?;
        self.file.write_all(&piece.bytes)
    }

    fn write<const D: usize>(&mut self, place: &Place, value: Tensor<D>) -> io::Result<()> {
        let (start, dtype) = self.starts[&place.name];
        self.file.seek(SeekFrom::Start(start))?;
        // A matrix by columns, which are the rows of its transpose; anything else as a single column.
        let shape = value.shape();
        let matrix: Tensor<2> = match (place.is_transposed, &shape[..]) {
            (true, &[rows, columns]) => value.reshape([rows, columns]),
            _ => value.reshape([1, shape.num_elements()]),
        };
        let [rows, columns] = matrix.dims();
        let at_once = (BLOCK / (4 * rows).max(1)).max(1);
        for first in (0..columns).step_by(at_once) {
            let block = matrix
                .clone()
                .narrow(1, first, at_once.min(columns - first));
            // Flex would cast all of the value that this is a part of.
            let block = block.transpose().into_data().convert_dtype(dtype);
            self.file.write_all(block.as_bytes())?;
        }
        Ok(())
    }
}

impl<P: Fn(&Path) -> Option<Place>, V: Values> PathVisitor for Blocks<P, V> {
    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        if self.error.is_none()
            && let Some(place) = (self.place)(path)
        {
            if let Some(pieces) = self.values.pieces(path, &place.name) {
                let written = pieces.iter().try_for_each(|it| self.write_piece(it));
                self.error = written.err();
                return;
            }
            let (_, dtype) = self.starts[&place.name];
            let value = self.values.take(path, param, dtype);
            self.error = self.write(&place, value).err();
        }
    }
}
