//! Models of Burn 0.22, trained on the batches of Burn 0.21.

use super::loss;
use super::scorer::Scorer;
use crate::encoder::EncoderConfig;
use crate::gpt::GptConfig;
use crate::results::LossChunk;
use crate::workload::Workload;
use anyhow::{Result, anyhow};
use burn::tensor::{DType, TensorData};
use burn_0_22::module::{Module, ModuleVisitor, Param};
use burn_0_22::tensor::{self, Device, Tensor};
use vit::model::{Model, Recomputed};
use vit_0_21::model::VitConfig;

/// A batch on the host.
pub(super) type HostBatch = (tensor::TensorData, tensor::TensorData);

/// A workload whose model can be `M` on Burn 0.22.
pub(super) trait Trainee<M: Module>: Workload {
    /// Builds the model with random weights. The backward pass recomputes what
    /// `recomputed` says.
    fn build(&self, recomputed: Recomputed, device: &Device) -> M;

    /// The loss of a batch, with a language model's by chunks if `chunk` says so, and with the
    /// masks of dropout drawn from `seed`.
    fn loss_of(
        &self,
        model: &M,
        batch: HostBatch,
        chunk: LossChunk,
        seed: u64,
        device: &Device,
    ) -> Tensor<1>;

    /// All batches of a run: those of Burn 0.21.
    fn host_batches(&self, size: usize, steps: usize, seed: u64) -> Result<Vec<HostBatch>> {
        let batches = self.batches(size, steps, seed).into_iter();
        batches
            .map(|(inputs, labels)| Ok((converted(inputs)?, converted(labels)?)))
            .collect()
    }
}

impl<M: Model> Trainee<M> for VitConfig {
    fn build(&self, recomputed: Recomputed, device: &Device) -> M {
        M::new(self, device).recomputing(recomputed)
    }

    /// One token of an image is scored: `plan` never asks for chunks.
    fn loss_of(
        &self,
        model: &M,
        (inputs, labels): HostBatch,
        _chunk: LossChunk,
        seed: u64,
        device: &Device,
    ) -> Tensor<1> {
        let scores = model.forward_seeded(Tensor::from_data(inputs, device), seed);
        loss::of_scores(scores, Tensor::from_data(labels, device))
    }
}

/// The shape of a language model: its batches are tokens, and their labels.
pub(super) trait Language: Workload {}

impl Language for EncoderConfig {}

impl Language for GptConfig {}

impl<C: Language, M: Scorer<C>> Trainee<M> for C {
    /// Its blocks have no scopes inside: `plan` never asks for nested ones.
    fn build(&self, recomputed: Recomputed, device: &Device) -> M {
        M::new(self, recomputed != Recomputed::Nothing, device)
    }

    fn loss_of(
        &self,
        model: &M,
        (inputs, labels): HostBatch,
        chunk: LossChunk,
        seed: u64,
        device: &Device,
    ) -> Tensor<1> {
        let inputs = Tensor::from_data(inputs, device);
        model.loss(inputs, Tensor::from_data(labels, device), chunk, seed)
    }
}

/// Draws the parameters of a model, in its order. Burn would draw each at its first use, which
/// comes earlier in a scope.
pub(super) fn draw<M: Module>(model: &M) {
    struct Draw;
    impl ModuleVisitor for Draw {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            param.val();
        }
    }
    model.visit(&mut Draw);
}

/// The data of Burn 0.21 as data of Burn 0.22.
fn converted(data: TensorData) -> Result<tensor::TensorData> {
    let shape = data.shape.to_vec();
    let dtype = data.dtype;
    let converted = match dtype {
        DType::F32 => data
            .into_vec::<f32>()
            .map(|values| tensor::TensorData::new(values, shape)),
        _ => data
            .into_vec::<i32>()
            .map(|values| tensor::TensorData::new(values, shape)),
    };
    converted.map_err(|error| anyhow!("a batch of {dtype:?} cannot be converted: {error:?}"))
}
