//! Weights of a folder, and a model that reads them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path as FilePath;

#[cfg(feature = "operations")]
use burn::module::ParamGroup;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, Tensor};

use super::error::SafetensorsError;
use super::names::{Place, check_floats};
#[cfg(feature = "operations")]
use super::nf4::StoredNf4;
use super::read::{Stored, tensors_of};
use crate::mixed_precision::MixedPrecision;
#[cfg(feature = "operations")]
use crate::operations::Nf4;
#[cfg(feature = "operations")]
use crate::path::PathVisitor;
use crate::path::{Path, PathMapper, WithPaths, path_text};

const ONE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Tensors in a `*.safetensors` file or several, of which nothing but the heads was read.
#[derive(Debug)]
pub struct Weights {
    tensors: BTreeMap<String, Stored>,
    precision: Option<MixedPrecision>,
}

impl Weights {
    /// Opens a file; or `model.safetensors` in a folder, or the files that
    /// `model.safetensors.index.json` tells.
    ///
    /// # Errors
    ///
    /// A file is missing or cut, a tensor is of another type than F32, BF16 or F16, or the index says
    /// something else than the files.
    pub fn open(path: impl AsRef<FilePath>) -> Result<Self, SafetensorsError> {
        let path = path.as_ref();
        let index = path.join(INDEX);
        let tensors = match path.is_dir() {
            true if index.exists() => indexed(path, &index)?,
            true => tensors_of(&path.join(ONE))?,
            false => tensors_of(path)?,
        };
        Ok(Self {
            tensors,
            precision: None,
        })
    }

    /// The weights of the model are in this precision. Without this, all are in f32.
    #[must_use]
    pub fn with_precision(mut self, precision: MixedPrecision) -> Self {
        self.precision = Some(precision);
        self
    }

    /// Leaves tensors out that the model has nothing for.
    #[must_use]
    pub fn without(mut self, is_left_out: impl Fn(&str) -> bool) -> Self {
        self.tensors.retain(|name, _| !is_left_out(name));
        self
    }

    /// The name of each tensor, its type in the file, and its shape.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, DType, &[usize])> {
        let tensors = self.tensors.iter();
        tensors.map(|(name, it)| (name.as_str(), it.dtype, it.shape.as_slice()))
    }

    /// The model with these weights. Each is read when it is first needed, and replaces what the
    /// model would draw; [`read_all`] reads them now. If the file is changed before that, reading
    /// panics. Freeze parameters after this call: a parameter that the model had not drawn is
    /// trained.
    ///
    /// `names` takes the path of a parameter in the model, such as `blocks.0.query.weight`, and
    /// returns its name in the files, such as `model.layers.0.self_attn.q_proj.weight`. Parameters
    /// of normalizations are `weight` and `bias` here, as in PyTorch, and weights of linear layers
    /// are transposed.
    ///
    /// # Errors
    ///
    /// A tensor is missing, is not the model's, or has another shape; the model has parameters that
    /// are not floats, or cannot be in this precision. The model is dropped.
    pub fn load<M: Module>(
        self,
        model: M,
        names: impl Fn(&str) -> String,
    ) -> Result<M, SafetensorsError> {
        #[cfg(feature = "operations")]
        super::nf4::refuse_packed(&self.tensors)?;
        self.load_where(model, |path| Some(Place::of(path, &names)))
    }

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
    #[cfg(feature = "operations")]
    pub fn load_nf4<M: Module>(
        mut self,
        nf4: Nf4,
        model: M,
        names: impl Fn(&str) -> String,
    ) -> Result<M, SafetensorsError> {
        let mut stored = StoredNf4::take_all(&mut self.tensors)?;
        let mut find = Find {
            stored: &stored,
            names: &names,
            ids: Vec::new(),
        };
        model.visit(&mut WithPaths::new(&mut find));
        let group = ParamGroup::from_ids(find.ids);
        let model = self.load_where(model, |path| {
            let place = Place::of(path, &names);
            (!stored.contains_key(&place.name)).then_some(place)
        })?;
        let nf4 = nf4.with_group(group);
        let mut cannot_read = None;
        let packed = nf4.pack_from(model, |path| {
            let name = names(path);
            let read = stored.remove(&name)?.read(&name);
            read.map_err(|error| cannot_read = Some(error)).ok()
        });
        if let Some(error) = cannot_read {
            return Err(error);
        }
        let model = packed?;
        match stored.into_keys().next() {
            Some(name) => Err(SafetensorsError::Additional { name }),
            None => Ok(model),
        }
    }

    /// [`load`](Self::load) into the parameters that have a place.
    fn load_where<M: Module>(
        self,
        model: M,
        place: impl Fn(&Path) -> Option<Place>,
    ) -> Result<M, SafetensorsError> {
        check_floats(&model)?;
        let half = match &self.precision {
            Some(precision) => Some((precision.params(&model)?, precision.dtype())),
            None => None,
        };
        let dtype = |id, path: &str| match &half {
            Some((group, dtype)) if group.matches(&id, Some(path)) => Some(*dtype),
            _ => Some(DType::F32),
        };
        let (model, rest) = fill(model, self.tensors, place, dtype)?;
        match rest.into_keys().next() {
            Some(name) => Err(SafetensorsError::Additional { name }),
            None => Ok(model),
        }
    }
}

/// Finds the parameters of states.
#[cfg(feature = "operations")]
struct Find<'a, N> {
    stored: &'a BTreeMap<String, StoredNf4>,
    names: N,
    ids: Vec<ParamId>,
}

#[cfg(feature = "operations")]
impl<N: Fn(&str) -> String> PathVisitor for Find<'_, N> {
    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        if self.stored.contains_key(&(self.names)(&path_text(path))) {
            self.ids.push(param.id);
        }
    }
}

/// Reads all weights of a model that were not read yet.
pub fn read_all<M: Module>(model: &M) {
    struct Read;
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            drop(param.base());
        }
    }
    model.visit(&mut Read);
}

/// The tensors of several files, as an index tells them.
fn indexed(
    folder: &FilePath,
    path: &FilePath,
) -> Result<BTreeMap<String, Stored>, SafetensorsError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = fs::read_to_string(path).map_err(|error| SafetensorsError::file(path, error))?;
    let wrong = |reason: String| SafetensorsError::contents(path, reason);
    let index: Index = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let mut files: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, file) in index.weight_map {
        if file.contains(['/', '\\']) {
            return Err(wrong(format!("{file} is of another folder")));
        }
        files.entry(file).or_default().push(name);
    }
    let mut all = BTreeMap::new();
    for (file, names) in files {
        let mut tensors = tensors_of(&folder.join(&file))?;
        for name in names {
            match tensors.remove(&name) {
                Some(tensor) => drop(all.insert(name, tensor)),
                None => return Err(wrong(format!("{file} has no {name}"))),
            }
        }
        if let Some(name) = tensors.keys().next() {
            return Err(wrong(format!("{file} has {name}, which is not told")));
        }
    }
    Ok(all)
}

/// The model with these tensors in the parameters that have a place, and the tensors that are left.
/// Without a type, a parameter gets that of the file, and is read now.
pub(crate) fn fill<M: Module>(
    model: M,
    tensors: BTreeMap<String, Stored>,
    place: impl Fn(&Path) -> Option<Place>,
    dtype: impl Fn(ParamId, &str) -> Option<DType>,
) -> Result<(M, BTreeMap<String, Stored>), SafetensorsError> {
    let mut fill = Fill {
        tensors,
        place,
        dtype,
        error: None,
    };
    let model = model.map(&mut WithPaths::new(&mut fill));
    match fill.error {
        Some(error) => Err(error),
        None => Ok((model, fill.tensors)),
    }
}

struct Fill<P, T> {
    tensors: BTreeMap<String, Stored>,
    place: P,
    dtype: T,
    /// The first one: Burn's traversal cannot fail.
    error: Option<SafetensorsError>,
}

impl<P, T> Fill<P, T> {
    /// The tensor of a parameter.
    fn take(&mut self, place: &Place, shape: &[usize]) -> Result<Stored, SafetensorsError> {
        let name = place.name.clone();
        let Some(stored) = self.tensors.remove(&name) else {
            return Err(SafetensorsError::Missing { name });
        };
        let expected = place.shape(shape);
        if !stored.dtype.is_float() {
            return Err(SafetensorsError::Type {
                name,
                dtype: format!("{:?}", stored.dtype),
            });
        }
        match stored.shape == expected {
            true => Ok(stored),
            false => Err(SafetensorsError::Shape {
                name,
                found: stored.shape,
                expected,
            }),
        }
    }
}

impl<P, T> PathMapper for Fill<P, T>
where
    P: Fn(&Path) -> Option<Place>,
    T: Fn(ParamId, &str) -> Option<DType>,
{
    fn map<const D: usize>(&mut self, path: &Path, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(place) = (self.place)(path) else {
            return param;
        };
        let shape = param.lazy_shape();
        match self.take(&place, &shape) {
            Ok(stored) => {
                let Place {
                    name,
                    is_transposed,
                } = place;
                let dtype = (self.dtype)(param.id, &path_text(path));
                let (dtype, is_now) = (dtype.unwrap_or(stored.dtype), dtype.is_none());
                let read = move |device: &Device, is_trained| {
                    // Burn's initialization cannot fail. The head was checked.
                    let data = stored.read(is_transposed, dtype);
                    let data = data.unwrap_or_else(|error| panic!("{name}: {error}"));
                    Tensor::from_data(data, (device, dtype)).set_require_grad(is_trained)
                };
                // Of one that is not drawn yet, nobody but Burn can know it.
                let is_trained = !param.is_initialized() || param.is_require_grad();
                let (id, device) = (param.id, param.lazy_device());
                let param = Param::uninitialized(id, read, device, is_trained, shape);
                if is_now {
                    drop(param.base());
                }
                param
            }
            Err(error) => {
                self.error.get_or_insert(error);
                param
            }
        }
    }
}
