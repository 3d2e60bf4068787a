//! Optimizer states in a scratch file.

use std::fmt;

use burn::backend::DispatchTensor;
use burn::optim::{
    self, LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource,
};
use burn::tensor::{DType, Device, Tensor};
use lean_arithmetic::optim::rules::AdaptiveRule;

use super::record::{Field, by_way_of_record};
use super::{
    AccumulatingInMoments, AdaLomo, Adaptive, Bf16Weights, Came, Lean, Lion, Rounding, Sgd,
};
use crate::error::expect;
use crate::gradients::{is_looked_for, is_only_asked, is_question};
use crate::scratch::{Scratch, ScratchError};
use crate::tensors::MapTensor;

/// An optimizer that can keep its states, and the weights that it has stepped, in a [`Scratch`]
/// file. The optimizers of this module and of Burn can.
pub trait InScratch: Optimizer {
    /// Keeps the states of parameters in a file, and puts their weights there in each step, wherever they
    /// were before. States and weights that are smaller than a page (4096 bytes) stay in memory. The steps
    /// are the same, and so are the records.
    ///
    /// An optimizer [in one pass](super::InOnePass) steps in the file. Burn's own make new tensors, which
    /// are copied into it: they take the memory of a state twice for a moment, and step weights in f32
    /// alone.
    ///
    /// A step panics if the disk is full: [`reserve`](Scratch::reserve) the space before.
    fn in_scratch(self, scratch: &Scratch) -> Scratched<Self>
    where
        Self: Sized,
    {
        Scratched {
            optimizer: self,
            scratch: scratch.clone(),
        }
    }

    /// Applies a function to each tensor of a state, as far as they are known.
    #[doc(hidden)]
    fn map_state<const D: usize>(state: Self::State<D>, _: &mut MapTensor<'_>) -> Self::State<D> {
        state
    }

    /// Puts a state into the file.
    #[doc(hidden)]
    fn placed<const D: usize>(
        state: Self::State<D>,
        scratch: &Scratch,
    ) -> Result<Self::State<D>, ScratchError> {
        scratch.place_each(|place| Self::map_state(state, place))
    }

    /// Whether states are known by their records alone, which Burn reads in f32.
    #[doc(hidden)]
    const BY_RECORD: bool = false;
}

/// An optimizer [whose states are in a scratch file](InScratch::in_scratch).
#[derive(Clone, Debug)]
pub struct Scratched<O> {
    optimizer: O,
    scratch: Scratch,
}

impl<O: InScratch> Scratched<O> {
    /// The optimizer for all parameters of a module.
    pub fn init(self) -> ModuleOptimizer {
        ModuleOptimizer::from(self)
    }

    /// Whether this is a question, and the answer.
    fn is_only_asked(&self, dtype: DType) -> bool {
        if !O::BY_RECORD {
            return is_question();
        }
        is_only_asked(match dtype {
            DType::F32 => Ok(()),
            _ => Err(format!(
                "Burn's optimizers read their states in f32, so they cannot step a weight in {dtype:?} \
                 from a scratch file: take `in_one_pass()`, or `Bf16Weights` around the optimizer"
            )),
        })
    }
}

/// State of [`Scratched`]: the state of its optimizer, with the same record.
#[derive(Clone)]
pub struct ScratchedState<O: Optimizer, const D: usize>(O::State<D>);

impl<O: Optimizer, const D: usize> fmt::Debug for ScratchedState<O, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScratchedState").finish_non_exhaustive()
    }
}

impl<O: InScratch, const D: usize> RecordState for ScratchedState<O, D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        self.0.state_flatten(prefix, out);
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        if O::BY_RECORD && is_looked_for(prefix) {
            return None;
        }
        RecordState::state_unflatten(prefix, source, device).map(Self)
    }
}

impl<O: InScratch> Optimizer for Scratched<O> {
    type State<const D: usize> = ScratchedState<O, D>;

    /// # Panics
    ///
    /// If the disk is full, or the weight is not on Flex.
    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<ScratchedState<O, D>>,
    ) -> (Tensor<D>, Option<ScratchedState<O, D>>) {
        let state = state.map(|ScratchedState(state)| state);
        if self.is_only_asked(tensor.dtype()) {
            let asked = match O::BY_RECORD {
                true => (tensor, None),
                false => self.optimizer.step(lr, tensor, grad, state),
            };
            return (asked.0, None);
        }
        let state = self.told(&tensor, state, Scratch::uses);
        let (tensor, state) = self.optimizer.step(lr, tensor, grad, state);
        let placed = self.scratch.placed(tensor.into_dispatch());
        let tensor = Tensor::from_dispatch(expect(placed));
        let state = state.map(|state| expect(O::placed(state, &self.scratch)));
        let state = self.told(&tensor, state, Scratch::changed);
        (tensor, state.map(ScratchedState))
    }

    fn to_device<const D: usize>(
        ScratchedState(state): ScratchedState<O, D>,
        device: &Device,
    ) -> ScratchedState<O, D> {
        ScratchedState(O::to_device(state, device))
    }
}

impl<O: InScratch> Scratched<O> {
    /// Tells who reads ahead of a weight and its state.
    fn told<const D: usize>(
        &self,
        weight: &Tensor<D>,
        state: Option<O::State<D>>,
        tell: fn(&Scratch, &DispatchTensor),
    ) -> Option<O::State<D>> {
        tell(&self.scratch, &weight.clone().into_dispatch());
        state.map(|state| {
            O::map_state(
                state,
                &mut MapTensor(&mut |tensor| {
                    tell(&self.scratch, &tensor);
                    tensor
                }),
            )
        })
    }
}

/// For optimizers whose states are [`Field`]s.
macro_rules! mapped {
    ($([$($generics:tt)*] $optimizer:ty),+ $(,)?) => {$(
        impl<$($generics)*> InScratch for $optimizer {
            fn map_state<const D: usize>(
                state: Self::State<D>,
                map: &mut MapTensor<'_>,
            ) -> Self::State<D> {
                state.map_tensors(map)
            }
        }
    )+};
}

mapped!([R: AdaptiveRule] Adaptive<R>, [] AdaLomo, [] Came, [] Lion, [] Sgd);

impl<O: Lean + InScratch> InScratch for AccumulatingInMoments<O> {
    fn map_state<const D: usize>(
        mut state: Self::State<D>,
        map: &mut MapTensor<'_>,
    ) -> Self::State<D> {
        state.optimizer = state.optimizer.map(|state| O::map_state(state, map));
        state
    }
}

impl<O: InScratch, R: Rounding> InScratch for Bf16Weights<O, R> {
    fn map_state<const D: usize>(
        mut state: Self::State<D>,
        map: &mut MapTensor<'_>,
    ) -> Self::State<D> {
        state.low = state.low.map_tensors(map);
        state.optimizer = state.optimizer.map(|state| O::map_state(state, map));
        state
    }

    fn placed<const D: usize>(
        mut state: Self::State<D>,
        scratch: &Scratch,
    ) -> Result<Self::State<D>, ScratchError> {
        state.low = scratch.place_each(|place| state.low.map_tensors(place))?;
        let optimizer = state.optimizer.map(|state| O::placed(state, scratch));
        state.optimizer = optimizer.transpose()?;
        Ok(state)
    }
}

/// For optimizers whose states have private tensors, which go by way of their record.
macro_rules! by_record {
    ($($optimizer:ty),+) => {$(
        impl InScratch for $optimizer {
            fn placed<const D: usize>(
                state: Self::State<D>,
                scratch: &Scratch,
            ) -> Result<Self::State<D>, ScratchError> {
                by_way_of_record(state, |data| scratch.stored(data))
            }

            const BY_RECORD: bool = true;
        }
    )+};
}

by_record!(
    optim::AdaGrad,
    optim::Adafactor,
    optim::Adam,
    optim::AdamW,
    optim::Adan,
    optim::Lamb,
    optim::Lion,
    optim::Muon,
    optim::RmsProp,
    optim::Sgd
);
