//! What the tests of the language models have in common.

use super::Scorer;
use crate::burn_0_22::trainee::draw;
use crate::results::LossChunk;
use burn_0_22::module::{ModuleVisitor, Param};
use burn_0_22::tensor::{Device, Gradients, Tensor, TensorData};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tokens that the models know.
pub(in crate::burn_0_22) const VOCABULARY: usize = 11;

/// Tokens in a sequence.
pub(in crate::burn_0_22) const CONTEXT: usize = 4;

static GENERATOR: Mutex<()> = Mutex::new(());

/// All threads draw from one generator, and a recomputed block in backward as well: whoever draws
/// holds this.
pub(in crate::burn_0_22) fn alone() -> MutexGuard<'static, ()> {
    GENERATOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The model, and the loss of a batch of two sequences.
pub(in crate::burn_0_22) fn loss<C, M: Scorer<C>>(
    config: &C,
    recomputes: bool,
    chunk: LossChunk,
) -> (M, Tensor<1>) {
    let device = Device::flex().autodiff();
    device.seed(5);
    let model = M::new(config, recomputes, &device);
    draw(&model);
    let tokens = 2 * CONTEXT;
    let ids = |shape: &[usize]| {
        let ids = (0..tokens as i32).map(|token| token * token % VOCABULARY as i32);
        TensorData::new(ids.collect::<Vec<_>>(), shape)
    };
    let inputs = Tensor::from_data(ids(&[2, CONTEXT]), &device);
    let labels = Tensor::from_data(ids(&[tokens]), &device);
    let loss = model.loss(inputs, labels, chunk, 3);
    (model, loss)
}

/// The loss, and the gradients in the order of the parameters.
fn bits<C, M: Scorer<C>>(config: &C, recomputes: bool) -> Vec<TensorData> {
    struct Collect(Gradients, Vec<TensorData>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let gradient = param.val().grad(&self.0);
            self.1.push(gradient.expect("each is used").into_data());
        }
    }
    let (model, loss) = loss::<C, M>(config, recomputes, LossChunk::WHOLE);
    let value = loss.clone().into_data();
    let mut collect = Collect(loss.backward(), vec![value]);
    model.visit(&mut collect);
    collect.1
}

/// Asserts that loss and gradients are the same, bit for bit, with recomputed blocks.
pub(in crate::burn_0_22) fn recomputed_blocks_have_the_same_gradients<C, M: Scorer<C>>(config: &C) {
    assert_eq!(bits::<C, M>(config, false), bits::<C, M>(config, true));
}

/// Asserts that the loss by chunks, and that of lean operations, are Burn's but for rounding.
pub(in crate::burn_0_22) fn chunks_and_lean_operations_differ_by_rounding<C, M, L>(config: &C)
where
    M: Scorer<C>,
    L: Scorer<C>,
{
    let value = |chunk| loss::<C, M>(config, false, chunk).1.into_scalar::<f64>();
    let whole = value(LossChunk::WHOLE);
    // One token, a rest of two, all.
    for tokens in ["1", "3", "8"] {
        let by_chunks = value(tokens.parse().unwrap());
        assert!((by_chunks / whole - 1.0).abs() < 1e-5, "{tokens}");
    }
    let (_, lean) = loss::<C, L>(config, false, LossChunk::WHOLE);
    assert!((lean.into_scalar::<f64>() / whole - 1.0).abs() < 1e-5);
}
