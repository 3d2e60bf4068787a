//! The linear layer that makes the logits.

use burn::tensor::Tensor;

use crate::operations::chunks::map_rows;
use crate::operations::lora::Factors;
use crate::operations::weight::Weight;
use crate::wide::widened;

/// The linear layer, and the bound of its logits.
#[derive(Clone)]
pub(super) struct Head {
    /// `[d_model, classes]`
    pub(super) weight: Weight,
    pub(super) factors: Option<Factors>,
    /// `[classes]`
    pub(super) bias: Option<Tensor<1>>,
    pub(super) softcap: Option<f64>,
}

impl Head {
    /// The logits, bounded by `softcap * tanh(logits / softcap)`.
    pub(super) fn logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        let logits = self.linear(hidden);
        match self.softcap {
            Some(softcap) => map_rows(logits, |_, x| (x / softcap).tanh() * softcap),
            None => logits,
        }
    }

    /// The gradient of the logits before their bound, from that of the bounded ones.
    pub(super) fn before_softcap(&self, grad: Tensor<2>, logits: Option<Tensor<2>>) -> Tensor<2> {
        let (Some(softcap), Some(logits)) = (self.softcap, logits) else {
            return grad;
        };
        map_rows(grad, |rows, grad| {
            let tanh = logits.clone().slice([rows]) / softcap;
            grad * (tanh.square().neg() + 1.0)
        })
    }

    /// In 32 bits at least: half precision has no logits beyond 65,504, and rounds the others.
    fn linear(&self, hidden: Tensor<2>) -> Tensor<2> {
        let hidden = widened(hidden);
        let logits = self.weight.product(hidden.clone(), self.bias.clone());
        match &self.factors {
            Some(factors) => factors.add(logits, factors.reduced(hidden)),
            None => logits,
        }
    }

    /// The gradient of hidden tokens, from that of their logits, which is in 32 bits at least. With an adapter,
    /// `of_reduced` is that of `hidden * a`.
    pub(super) fn of_hidden(&self, grad: Tensor<2>, of_reduced: Option<Tensor<2>>) -> Tensor<2> {
        let of_hidden = self.weight.product_transposed(grad, None);
        match self.factors.as_ref().zip(of_reduced) {
            Some((factors, of_reduced)) => factors.add_of_input(of_hidden, of_reduced),
            None => of_hidden,
        }
    }
}
