//! Frozen weights in four bits.

mod packed;
mod state;
#[cfg(feature = "safetensors")]
mod weights;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use burn::module::{
    Lora, LoraAdapter, Module, Param, ParamGroup, ParamId, Reparameterization, Reparameterizer,
};
use burn::tensor::{DType, Int, Tensor};

use crate::backend::constant;
use crate::path::{Path, PathVisitor, WithPaths, path_text};
#[cfg(feature = "scratch")]
use crate::scratch::{Scratch, ScratchError};

pub(crate) use packed::{PART_BYTES, Packed};
pub use state::Nf4State;
#[cfg(feature = "safetensors")]
pub(crate) use weights::{PackedWeights, packed_weights};

/// Packs frozen weights into four bits: NF4 with double quantization, of [QLoRA: Efficient Finetuning of
/// Quantized LLMs](https://arxiv.org/abs/2305.14314), in 4.127 bits a number on each backend. The bits are
/// those of [bitsandbytes](https://github.com/bitsandbytes-foundation/bitsandbytes).
///
/// The weights of [`nn`](super::nn)'s layers stay packed: a layer unpacks a part of its weight at a time,
/// in the forward pass and in backward. Any other module reads a dense weight, which its layer keeps until
/// backward.
///
/// ```
/// use burn::module::Lora;
/// use burn::tensor::{Device, Tensor};
/// use burn_lean::operations::Nf4;
/// use burn_lean::operations::nn::{Linear, LinearConfig};
///
/// let device = Device::flex().autodiff();
/// let layer: Linear = LinearConfig::new(64, 64).init(&device);
/// let layer = Nf4::new().with_lora(Lora::new(8, 16.0)).pack(layer)?;
/// let y = layer.forward(Tensor::<2>::ones([2, 64], &device));
/// let grads = y.mean().backward();
/// # let _ = grads;
/// # Ok::<(), burn_lean::operations::PackError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Nf4 {
    group: Option<ParamGroup>,
    lora: Option<Lora>,
    #[cfg(feature = "scratch")]
    scratch: Option<Scratch>,
}

/// A weight that cannot be packed. The model is dropped.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// Four bits cannot hold it.
    #[error("{path} has a number that is not finite")]
    NotFinite {
        /// The path of the weight.
        path: String,
    },
    /// There is no state for it.
    #[error("there is no packed state for {path}")]
    Missing {
        /// The path of the weight.
        path: String,
    },
    /// Its state is of another weight.
    #[error(
        "the packed state for {path} is of a matrix {found:?}, or cut: the weight is {expected:?}"
    )]
    Shape {
        /// The path of the weight.
        path: String,
        /// The shape of the weight, `[d_output, d_input]` of a linear layer.
        expected: [usize; 2],
        /// That of the state.
        found: [usize; 2],
    },
    /// It cannot be in the scratch file.
    #[cfg(feature = "scratch")]
    #[error("{path} cannot be in the scratch file: {error}")]
    Scratch {
        /// The path of the weight.
        path: String,
        /// Why not.
        error: ScratchError,
    },
}

impl Nf4 {
    /// Packs the weights of layers whose name has `Linear` in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Packs these parameters instead, as far as they are matrices.
    #[must_use]
    pub fn with_group(mut self, group: ParamGroup) -> Self {
        self.group = Some(group);
        self
    }

    /// Attaches adapters, as Burn's [`apply_lora`](Module::apply_lora) does: also to matrices that are not
    /// packed, and all else is frozen. `apply_lora` after [`pack`](Self::pack) would take the place of the
    /// packed weights.
    #[must_use]
    pub fn with_lora(mut self, lora: Lora) -> Self {
        self.lora = Some(lora);
        self
    }

    /// Puts each packed weight into a file, when it is packed.
    #[cfg(feature = "scratch")]
    #[must_use]
    pub fn in_scratch(mut self, scratch: &Scratch) -> Self {
        self.scratch = Some(scratch.clone());
        self
    }

    /// Packs the weights of a model, one after the other. One that nobody has read yet is drawn, packed and
    /// dropped.
    ///
    /// # Errors
    ///
    /// A weight has a number that is not finite.
    pub fn pack<M: Module>(self, model: M) -> Result<M, PackError> {
        self.pack_with(model, None::<fn(&str) -> Option<Nf4State>>)
    }

    /// Puts packed weights into a model, whose own are not read, and not drawn if nobody has read them yet.
    /// `state` gives that of a path, one after the other.
    ///
    /// # Errors
    ///
    /// There is no state of a weight, or it is of another shape.
    pub fn pack_from<M: Module>(
        self,
        model: M,
        state: impl FnMut(&str) -> Option<Nf4State>,
    ) -> Result<M, PackError> {
        self.pack_with(model, Some(state))
    }

    fn pack_with<M: Module>(
        self,
        model: M,
        state: Option<impl FnMut(&str) -> Option<Nf4State>>,
    ) -> Result<M, PackError> {
        let mut plan = Plan {
            group: self.group,
            matrices: HashMap::new(),
        };
        model.visit(&mut WithPaths::new(&mut plan));
        let matrices = plan.matrices;
        let model = match &self.lora {
            Some(lora) => model.apply_reparameterization(Others {
                matrices: &matrices,
                lora: lora.clone(),
            }),
            None => model,
        };
        let error = Rc::default();
        let model = model.apply_reparameterization(Packer {
            matrices,
            state,
            lora: self.lora,
            #[cfg(feature = "scratch")]
            scratch: self.scratch,
            error: Rc::clone(&error),
        });
        match error.take() {
            Some(error) => Err(error),
            None => Ok(model),
        }
    }
}

/// The matrices to pack, and whether each is transposed: a linear layer of PyTorch has `[d_output, d_input]`.
type Matrices = HashMap<ParamId, bool>;

struct Plan {
    group: Option<ParamGroup>,
    matrices: Matrices,
}

impl PathVisitor for Plan {
    fn visit<const D: usize>(&mut self, path: &Path, param: &Param<Tensor<D>>) {
        let container = path.last().map_or("", |(_, container)| container);
        let is_transposed = container.contains("Linear");
        let is_chosen = match &self.group {
            Some(group) => group.matches(&param.id, Some(&path_text(path))),
            None => is_transposed,
        };
        if is_chosen && D == 2 {
            self.matrices.insert(param.id, is_transposed);
        }
    }
}

/// Attaches adapters to what is not packed, and freezes all. Burn's [`Lora`] reads each matrix for that:
/// those to be packed would all be there at once.
struct Others<'a> {
    matrices: &'a Matrices,
    lora: Lora,
}

impl Reparameterizer for Others<'_> {
    type Reparam = LoraAdapter;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<LoraAdapter>) {
        match self.matrices.contains_key(&param.id) {
            true => (param.set_require_grad(false), None),
            false => self.lora.reparameterize(path, param),
        }
    }
}

struct Packer<S> {
    matrices: Matrices,
    /// Gives what is packed, if it is not the model's own.
    state: Option<S>,
    lora: Option<Lora>,
    #[cfg(feature = "scratch")]
    scratch: Option<Scratch>,
    /// Burn's traversal cannot fail.
    error: Rc<RefCell<Option<PackError>>>,
}

impl<S: FnMut(&str) -> Option<Nf4State>> Packer<S> {
    fn fail(&self, error: PackError) {
        self.error.borrow_mut().get_or_insert(error);
    }

    /// The state of a path, if it is of a matrix of this shape.
    fn state_of(&mut self, path: &str, expected: [usize; 2]) -> Option<Nf4State> {
        let state = self.state.as_mut()?(path);
        let path = || path.to_owned();
        match state {
            Some(state) if state.is_of(expected) => return Some(state),
            Some(Nf4State { shape: found, .. }) => self.fail(PackError::Shape {
                path: path(),
                expected,
                found,
            }),
            None => self.fail(PackError::Missing { path: path() }),
        }
        None
    }

    #[cfg(feature = "scratch")]
    fn placed(&self, path: &str, mut packed: Packed) -> Packed {
        let Some(scratch) = &self.scratch else {
            return packed;
        };
        for words in [&mut packed.numbers, &mut packed.scales] {
            match scratch.keep(words.clone()) {
                Ok(placed) => *words = placed,
                Err(error) => {
                    let path = path.into();
                    self.fail(PackError::Scratch { path, error });
                }
            }
        }
        packed
    }
}

impl<S: FnMut(&str) -> Option<Nf4State>> Reparameterizer for Packer<S> {
    type Reparam = Nf4Weight;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<Nf4Weight>) {
        let Some(is_transposed) = self.matrices.remove(&param.id) else {
            return (param, None);
        };
        // Burn goes on after an error; what it would still read or draw, nobody gets.
        if self.error.borrow().is_some() {
            return (param, None);
        }
        let (id, device, shape) = (param.id, param.lazy_device(), param.lazy_shape());
        let (packed, dtype) = if self.state.is_some() {
            let expected = match is_transposed {
                true => [shape[1], shape[0]],
                false => [shape[0], shape[1]],
            };
            let Some(state) = self.state_of(path, expected) else {
                return (param, None);
            };
            drop(param);
            (Packed::of(&state, is_transposed, &device), DType::F32)
        } else {
            let weight = param.into_value().inner();
            let dtype = weight.dtype();
            // Of rank two.
            let weight = Tensor::<2>::from_dispatch(weight.into_dispatch());
            let (packed, are_finite) = Packed::new(weight, is_transposed);
            if !are_finite {
                let path = path.into();
                self.fail(PackError::NotFinite { path });
            }
            (packed, dtype)
        };
        #[cfg(feature = "scratch")]
        let packed = self.placed(path, packed);
        let adapter = self.lora.as_mut().and_then(|lora| {
            // Burn asks for its shape and type.
            let one = Tensor::<D>::zeros([1; D], (&device, dtype));
            let like: Param<Tensor<D>> = Param::initialized(id, one.expand(shape));
            lora.reparameterize(path, like).1
        });
        // A part of the weight that has no elements, and one of its lengths.
        let mut shape = [0; D];
        shape[usize::from(!is_transposed)] = packed.dims[1];
        let empty = Tensor::empty(shape, (&device, dtype));
        let Packed {
            numbers,
            scales,
            of_scales,
            dims,
            is_transposed,
        } = packed;
        let weight = Nf4Weight {
            numbers: Param::initialized(ParamId::new(), numbers),
            scales: Param::initialized(ParamId::new(), scales),
            of_scales: Param::initialized(ParamId::new(), of_scales).set_require_grad(false),
            lora: adapter,
            dims,
            is_transposed,
        };
        let base = Param::initialized(id, empty).set_require_grad(false);
        (base, Some(weight))
    }
}

/// A frozen weight in four bits, and its adapter, in the place of a parameter's value: that is empty.
#[derive(Module, Debug)]
pub struct Nf4Weight {
    numbers: Param<Tensor<1, Int>>,
    scales: Param<Tensor<1, Int>>,
    of_scales: Param<Tensor<1>>,
    /// The adapter.
    pub lora: Option<LoraAdapter>,
    #[module(skip)]
    dims: [usize; 2],
    #[module(skip)]
    is_transposed: bool,
}

impl Nf4Weight {
    /// What bitsandbytes stores of it.
    pub fn state(&self) -> Nf4State {
        self.packed().state()
    }

    /// The packed weight of a parameter, if it has one.
    pub(crate) fn of(param: &Param<Tensor<2>>) -> Option<&Self> {
        param.reparameterization()
    }

    /// # Panics
    ///
    /// If its scales were cast.
    fn packed(&self) -> Packed {
        let of_scales = self.of_scales.val();
        assert_eq!(
            of_scales.dtype(),
            DType::F32,
            "the scales of a weight in four bits were cast, which loses bits: leave them in f32"
        );
        Packed {
            numbers: self.numbers.val().inner(),
            scales: self.scales.val().inner(),
            of_scales: of_scales.inner(),
            dims: self.dims,
            is_transposed: self.is_transposed,
        }
    }

    /// The packed weight.
    ///
    /// # Panics
    ///
    /// If `weight`, which has this in the place of its value, is to be trained.
    pub(in crate::operations) fn frozen<const D: usize>(&self, weight: &Tensor<D>) -> Packed {
        assert!(
            !weight.is_require_grad(),
            "a weight in four bits cannot be trained: freeze it again, or train its adapter alone with \
             `unfreeze_group`"
        );
        self.packed()
    }
}

impl Reparameterization for Nf4Weight {
    const NAME: &'static str = "nf4";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let dense = constant(self.frozen(&base).unpacked(), &base.device());
        let value = match &self.lora {
            Some(lora) => {
                let delta = lora.delta();
                dense.cast(delta.dtype()) + delta
            }
            None => dense.cast(base.dtype()),
        };
        // Of rank two, which only matrices have.
        Tensor::from_dispatch(value.into_dispatch())
    }
}
