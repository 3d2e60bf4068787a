//! Models in half precision whose normalizations stay in f32.

use std::collections::HashSet;

use burn::module::{Module, Param, ParamGroup, ParamId};
use burn::tensor::{DType, Device, Tensor};

use crate::error::{Refused, ReleaseError};
use crate::groups::check_groups;
use crate::optimizer::with_value;
use crate::path::{Path, PathMapper, PathVisitor, WithPaths, is_packed, path_text};
use crate::wide::is_half;

/// Casts a model to bf16 or f16, except for its normalizations, which stay in f32.
///
/// Products of matrices, activations and their gradients take half the memory. Normalizations keep
/// their gains in f32, and [`operations::nn`](crate::operations::nn) has modules that take an input
/// in half precision with them: they compute in f32 and give the type of their input. Its `Embedding`
/// adds gradients up in f32, where Burn's adds them in half precision. Fields that Burn skips are not
/// cast, as an activation with parameters in a feed-forward network (`pwff.activation`). To train the
/// model, take an optimizer that keeps more bits of the weights than the model has:
/// [`in_five_bytes`](crate::optim::InFiveBytes::in_five_bytes).
///
/// ```
/// use burn::module::Module;
/// use burn::optim::AdamWConfig;
/// use burn::tensor::{DType, Device, Tensor};
/// use burn_lean::operations::nn;
/// use burn_lean::optim::InFiveBytes;
/// use burn_lean::{MixedPrecision, WithGradientRelease};
///
/// #[derive(Module, Debug)]
/// struct Mlp {
///     norm: nn::LayerNorm,
///     linear: nn::Linear,
/// }
///
/// let device = Device::flex().autodiff();
/// let model = Mlp {
///     norm: nn::LayerNormConfig::new(8).init(&device),
///     linear: nn::LinearConfig::new(8, 8).init(&device),
/// };
/// let mut model = MixedPrecision::bf16().cast(model)?;
/// assert_eq!(model.linear.weight.val().dtype(), DType::BF16);
/// assert_eq!(model.norm.gamma.val().dtype(), DType::F32);
///
/// let mut optim = AdamWConfig::new().in_five_bytes(42).init().with_gradient_release();
/// let x = Tensor::<2>::ones([4, 8], &device).cast(DType::BF16);
/// let y = model.linear.forward(model.norm.forward(x));
/// let loss = y.cast(DType::F32).square().mean();
/// model = optim.backward(1e-3, loss, model);
/// # let _ = model;
/// # Ok::<(), burn_lean::CastError>(())
/// ```
///
/// Inputs and the loss are for the caller to cast: the model's input to its type, and scores to f32
/// before a loss. [`linear_cross_entropy`](crate::operations::linear_cross_entropy) gives a loss in
/// f32. In f16 gradients below 6e-8 vanish, so [scale the loss](crate::LossScaler).
#[derive(Clone, Debug)]
pub struct MixedPrecision {
    dtype: DType,
    kept: Vec<ParamGroup>,
    casts_norms: bool,
}

impl MixedPrecision {
    /// Weights in bf16, which has the range of f32 and 8 bits.
    pub fn bf16() -> Self {
        Self::new(DType::BF16)
    }

    /// Weights in f16, which has 11 bits, and magnitudes from 6e-8 to 65,504.
    pub fn f16() -> Self {
        Self::new(DType::F16)
    }

    /// The type of the weights.
    #[cfg(feature = "safetensors")]
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    fn new(dtype: DType) -> Self {
        Self {
            dtype,
            kept: Vec::new(),
            casts_norms: false,
        }
    }

    /// Keeps these parameters in f32, too. The model's own code has to cast where they meet others.
    #[must_use]
    pub fn keep(mut self, group: ParamGroup) -> Self {
        self.kept.push(group);
        self
    }

    /// Casts normalizations, too: for models of `burn::nn`, whose normalizations take an input and
    /// parameters of one type.
    #[must_use]
    pub fn cast_norms(mut self) -> Self {
        self.casts_norms = true;
        self
    }

    /// Casts a model. Parameters that are in the type already stay as they are.
    ///
    /// Load weights before, or with `record.cast_to_module_dtype()`: else the record's type replaces the
    /// model's. Lazy parameters are initialized, and cast, at their first use, unless
    /// the model has a `BatchNorm`.
    ///
    /// The weights are rounded to the nearest. To keep their other bits for the optimizer, give
    /// [`params`](Self::params) to
    /// [`weights_from_f32`](crate::optim::Bf16Weights::weights_from_f32) instead.
    ///
    /// # Errors
    ///
    /// With the model, as it was given:
    ///
    /// - [`CannotMix`](CastError::CannotMix): a module that takes an input in the type of its
    ///   parameters or tables only;
    /// - [`NotF32`](CastError::NotF32): a parameter in a third type;
    /// - [`NoSuchType`](CastError::NoSuchType): the device has no such type;
    /// - [`EmptyGroup`](CastError::EmptyGroup): no parameter is in a group to keep;
    pub fn cast<M: Module>(&self, model: M) -> Result<M, Refused<M, (), CastError>> {
        match self.params(&model) {
            Ok(group) => Ok(cast(model, &group, self.dtype)),
            Err(error) => Err(Refused::new(model, error)),
        }
    }

    /// The parameters that [`cast`](Self::cast) casts.
    ///
    /// # Errors
    ///
    /// Those of [`cast`](Self::cast).
    pub fn params<M: Module>(&self, model: &M) -> Result<ParamGroup, CastError> {
        check_groups(model, &self.kept)?;
        let mut modules = Modules::default();
        model.visit(&mut WithPaths::new(&mut modules));
        let mut paths = Vec::new();
        for param in modules.params {
            let path = param.path;
            let is_named = self
                .kept
                .iter()
                .any(|kept| kept.matches(&param.id, Some(&path)));
            if is_named {
                continue;
            }
            if let Some(norm) = param.norm.filter(|_| !self.casts_norms) {
                if !modules.mixing.contains(&norm.path) {
                    return Err(norm.cannot_mix(self.dtype));
                }
                continue;
            }
            if !param.device.supports_dtype(self.dtype) {
                return Err(CastError::NoSuchType {
                    path,
                    device: format!("{:?}", param.device),
                    dtype: format!("{:?}", self.dtype),
                });
            }
            if param.dtype != DType::F32 && param.dtype != self.dtype {
                let dtype = format!("{:?}", param.dtype);
                return Err(CastError::NotF32 { path, dtype });
            }
            paths.push(path);
        }
        match modules.tables.into_iter().next() {
            Some(table) => Err(table.cannot_mix(self.dtype)),
            None => Ok(ParamGroup::from_paths(paths)),
        }
    }

    /// The reverse: a model whose parameters in half precision are in f32.
    ///
    /// They have the values that the model computes with. For those that the optimizer has, see
    /// [`weights_to_f32`](crate::optim::Bf16Weights::weights_to_f32).
    pub fn to_f32<M: Module>(model: M) -> M {
        cast(model, &ParamGroup::all(), DType::F32)
    }
}

/// Why a model cannot be cast.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CastError {
    /// A module takes an input in the type of its parameters or tables only, which are in f32.
    #[error(
        "{path} is a `{module}` with parameters or tables in f32, and takes no input in {dtype}: if it \
         is Burn's, make it one of `burn_lean::operations::nn` by `into()`; or, if it is a \
         normalization, name its parameters with `keep`, where its own code or yours casts its input \
         to f32 and its output back, or cast it as well, with `cast_norms()`"
    )]
    CannotMix {
        /// Path of the module in the model.
        path: String,
        /// Its name.
        module: String,
        /// The type of the model.
        dtype: String,
    },

    /// A parameter that is to be cast is in another type than f32.
    #[error(
        "{path} is in {dtype}: only parameters in f32 are cast; cast it to f32 before, or name it \
         with `keep`"
    )]
    NotF32 {
        /// Path of the parameter in the model.
        path: String,
        /// Its type.
        dtype: String,
    },

    /// The device has no such type.
    #[error(
        "{path} is on {device}, which has no {dtype}: take a type that it has (WGSL has no bf16, and \
         NdArray neither bf16 nor f16)"
    )]
    NoSuchType {
        /// Path of the parameter in the model.
        path: String,
        /// Its device.
        device: String,
        /// The type that was asked for.
        dtype: String,
    },

    /// No parameter is in a group to [`keep`](MixedPrecision::keep).
    #[error(transparent)]
    EmptyGroup(#[from] ReleaseError),
}

impl<M> From<Refused<M, (), CastError>> for CastError {
    fn from(refused: Refused<M, (), CastError>) -> Self {
        refused.into_parts().1
    }
}

fn cast<M: Module>(model: M, group: &ParamGroup, dtype: DType) -> M {
    struct Cast<'a> {
        group: &'a ParamGroup,
        dtype: DType,
    }
    impl PathMapper for Cast<'_> {
        fn map<const D: usize>(
            &mut self,
            path: &Path,
            param: Param<Tensor<D>>,
        ) -> Param<Tensor<D>> {
            if !self.group.matches(&param.id, Some(&path_text(path))) {
                return param;
            }
            let dtype = self.dtype;
            // To f32 goes what is in half precision only.
            let cast = move |weight: Tensor<D>| match (weight.dtype(), dtype) {
                (from, to) if is_half(from) || is_half(to) => weight.cast(dtype),
                _ => weight,
            };
            match param.is_initialized() {
                true => with_value(param, cast),
                // At its first use, as Burn has it: its weight is the same, and no model in f32 exists.
                false => param.init_mapper(cast),
            }
        }
    }
    synchronize(&model);
    model.map(&mut WithPaths::new(&mut Cast { group, dtype }))
}

/// Applies the pending updates of running statistics, which are in the type of before: Burn would
/// apply them to those of after.
pub(crate) fn synchronize<M: Module>(model: &M) {
    let mut modules = Modules::default();
    model.visit(&mut WithPaths::new(&mut modules));
    let is_batch_norm = |norm: &SubModule| norm.container == "Struct:BatchNorm";
    let mut norms = modules
        .params
        .iter()
        .filter_map(|param| param.norm.as_ref());
    if norms.any(is_batch_norm) {
        drop(model.valid());
    }
}

/// Containers of normalizations, which stay in f32.
const NORMS: [&str; 5] = [
    "Struct:LayerNorm",
    "Struct:RmsNorm",
    "Struct:GroupNorm",
    "Struct:BatchNorm",
    "Struct:InstanceNorm",
];

/// Burn's modules with tables in f32, which are no parameters: the container, and the table's name.
const TABLES: [(&str, &str); 2] = [
    ("Struct:RotaryEncoding", "freq_complex"),
    ("Struct:PositionalEncoding", "sinusoids"),
];

/// What a model is made of, as far as it matters for types.
#[derive(Default)]
struct Modules {
    params: Vec<FloatParam>,
    /// Normalizations that take an input in half precision with gains in f32.
    mixing: HashSet<String>,
    /// Modules with a table that is added to an input, or multiplied with it, in the table's type.
    tables: Vec<SubModule>,
}

struct FloatParam {
    id: ParamId,
    path: String,
    device: Device,
    /// Before it is initialized, that of its device.
    dtype: DType,
    /// The normalization that it belongs to.
    norm: Option<SubModule>,
}

struct SubModule {
    path: String,
    container: String,
}

impl SubModule {
    fn cannot_mix(self, dtype: DType) -> CastError {
        let Self { path, container } = self;
        let module = container.trim_start_matches("Struct:").into();
        let dtype = format!("{dtype:?}");
        CastError::CannotMix {
            path,
            module,
            dtype,
        }
    }
}

impl PathVisitor for Modules {
    fn enter(&mut self, path: &Path, name: &str, container: &str) {
        let module = path_text(path);
        // Those of `operations::nn` show their epsilon, as a module without parameters; Burn's do not.
        if NORMS.contains(&container) && name == "epsilon" {
            self.mixing.insert(module);
            return;
        }
        // Those of `operations::nn` hold Burn's, and have its name.
        let is_wrapped = path.last().is_some_and(|(_, outer)| outer == container);
        if TABLES.contains(&(container, name)) && !is_wrapped {
            let container = container.into();
            self.tables.push(SubModule {
                path: module,
                container,
            });
        }
    }

    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        // Its scales stay in f32.
        if is_packed(path) {
            return;
        }
        let norm = path
            .split_last()
            .filter(|((_, container), _)| NORMS.contains(&container.as_str()));
        let norm = norm.map(|((_, container), outer)| SubModule {
            path: path_text(outer),
            container: container.clone(),
        });
        let device = param.lazy_device();
        let dtype = match param.is_initialized() {
            true => param.val().dtype(),
            false => device.settings().float_dtype.into(),
        };
        self.params.push(FloatParam {
            id: param.id,
            path: path_text(path),
            device,
            dtype,
            norm,
        });
    }
}
