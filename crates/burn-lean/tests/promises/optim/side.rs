//! The names of Burn 0.22 for what the tests of both Burns use.

use crate::harness::prelude::*;
use std::collections::BTreeMap;

use burn::backend::Flex;
use burn::optim::{RecordState, StateSink, StateSource};

pub(crate) use burn::optim::{AdamWState as BurnsAdamWState, LionConfig, Optimizer};
pub(crate) use burn::tensor::{Device, Tensor};
pub(crate) use burn_lean::optim::{
    AccumulateInMoments, AdaLomoConfig, AdamW, AdamWState, AdaptiveMomentumState, Bf16Weights,
    CameConfig, CannotAccumulate, EightBitMoments, Format, InOnePass, Kind, Lean, Lion,
    MasterWeights, Moment, MomentDecay, RAdamConfig, Rounding, Sgd, StableAdamW, StableAdamWConfig,
    Stochastic,
};

/// A state as it would be saved: the tensors, as type, shape and bytes, and the scalars.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Saved {
    pub(crate) tensors: BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>,
    pub(crate) scalars: BTreeMap<String, usize>,
}

impl Saved {
    pub(crate) fn of(state: &impl RecordState) -> Self {
        let mut sink = StateSink::default();
        state.state_flatten("p", &mut sink);
        let tensor = |(name, data): (String, TensorData)| {
            let (dtype, shape) = (data.dtype(), data.shape().to_vec());
            (name, (dtype, shape, data.as_bytes().to_vec()))
        };
        let scalars = sink.scalars.into_iter();
        Self {
            tensors: sink.tensors.into_iter().map(tensor).collect(),
            scalars: scalars
                .map(|(name, value)| (name, usize::try_from(value).unwrap()))
                .collect(),
        }
    }

    pub(crate) fn load<S: RecordState>(&self, device: &Device) -> Option<S> {
        let scalars = self.scalars.iter();
        let scalars = scalars.map(|(name, value)| (name.clone(), (*value).into()));
        let mut source = StateSource::new(scalars.collect());
        for (name, (dtype, shape, bytes)) in &self.tensors {
            let data = TensorData::from_bytes_vec(bytes.clone(), shape.clone(), *dtype);
            source.insert_tensor(name.clone(), data);
        }
        S::state_unflatten("p", &mut source, device)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.tensors.values().map(|(_, _, bytes)| bytes.len()).sum()
    }
}

/// Burn has it, too.
pub(crate) const LION_IS_BURNS: bool = true;

/// Flex, which steps in one pass.
pub(crate) fn device() -> Device {
    Device::flex()
}

/// Flex, and devices without a pass, where the optimizers run on Burn's operations.
pub(crate) fn places() -> Vec<Device> {
    let others = vec![
        #[cfg(feature = "ndarray")]
        #[allow(deprecated)] // Burn 0.22 deprecates NdArray, and 0.23 has it no more.
        Device::ndarray(),
    ];
    [places_with_bf16(), others].concat()
}

pub(crate) fn places_with_bf16() -> Vec<Device> {
    // The pass is for tensors without autodiff, as an optimizer gets them. With it a device is one
    // of those that the pass does not know.
    vec![device(), Device::flex().autodiff()]
}

pub(crate) fn lion(config: &LionConfig) -> Lion {
    config.in_one_pass()
}

pub(crate) fn model_without_embeddings() -> Linear {
    LinearConfig::new(2, 2).init(&device())
}

/// The embedding's weight is `[100, 50]`, and that of the other layer `[50, 100]`.
pub(crate) fn model_with_embedding() -> (Embedding, Linear) {
    (
        EmbeddingConfig::new(100, 50).init(&device()),
        LinearConfig::new(50, 100).init(&device()),
    )
}

/// Checks those optimizers of [`InOnePass`] that Burn 0.21 does not have.
macro_rules! optimizers_of_this_burn {
    ($check:ident) => {{
        use burn::optim::LionConfig;
        let decayed = LionConfig::new().with_weight_decay(0.1);
        $check!("lion", LionConfig::new());
        $check!("lion, decay", decayed.with_beta_1(0.8).with_beta_2(0.98));
    }};
}
pub(crate) use optimizers_of_this_burn;

/// Checks optimizers that `burn-gradient-release-optim` does not have, as the tests of types do: none.
macro_rules! each_of_this_burn {
    ($check:ident) => {};
}
pub(crate) use each_of_this_burn;

/// Where the elements of a tensor begin.
pub(crate) fn address(tensor: &Tensor<2>) -> usize {
    let tensor = tensor.clone().try_into_primitive::<Flex>().unwrap();
    tensor.bytes().as_ptr() as usize
}

/// Where the buffers of a moment begin.
pub(crate) fn addresses(moment: &Moment<2>) -> Vec<usize> {
    match moment {
        Moment::Float(floats) => vec![address(floats)],
        Moment::EightBit(blocks) => {
            let words = blocks.words.clone().try_into_primitive::<Flex>().unwrap();
            vec![words.bytes().as_ptr() as usize]
        }
    }
}
