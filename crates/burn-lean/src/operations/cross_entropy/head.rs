//! The linear layer that makes the logits.

use std::ops::Range;

use burn::tensor::Tensor;

use crate::operations::chunks::{chunks, map_rows};
use crate::operations::linear::linear;
use crate::operations::product::{Before, onto_bias, product_into};
use crate::wide::{wide, widened};

/// How much of a weight in half precision is widened at once.
const PART_BYTES: usize = 4 << 20;

/// The linear layer, and the bound of its logits.
#[derive(Clone)]
pub(super) struct Head {
    /// `[d_model, classes]`
    pub(super) weight: Tensor<2>,
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
        let (hidden, bias) = (widened(hidden), self.bias.clone().map(widened));
        if !self.is_widened() {
            return linear(hidden, self.weight.clone(), bias);
        }
        let ([tokens, _], [_, classes]) = (hidden.dims(), self.weight.dims());
        let (logits, before) = onto_bias(bias, [tokens, classes], &hidden);
        self.parts().fold(logits, |logits, columns| {
            let weight = self.part(&columns);
            product_into(logits, [0..tokens, columns], before, hidden.clone(), weight)
        })
    }

    /// Writes the gradient of hidden tokens, from that of their logits, into that of all. They are in 32
    /// bits at least.
    pub(super) fn write_of_hidden(
        &self,
        of_hidden: Tensor<2>,
        tokens: &Range<usize>,
        grad: Tensor<2>,
    ) -> Tensor<2> {
        let at = [tokens.clone(), 0..of_hidden.dims()[1]];
        if !self.is_widened() {
            let weight = self.weight.clone().transpose();
            return product_into(of_hidden, at, Before::Anything, grad, weight);
        }
        self.parts().fold(of_hidden, |of_hidden, columns| {
            let before = match columns.start {
                0 => Before::Anything,
                _ => Before::Sum,
            };
            let weight = self.part(&columns).transpose();
            let grad = grad.clone().slice([0..tokens.len(), columns]);
            product_into(of_hidden, at.clone(), before, grad, weight)
        })
    }

    fn is_widened(&self) -> bool {
        self.weight.dtype() != wide(self.weight.dtype())
    }

    fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let [d_model, classes] = self.weight.dims();
        chunks(classes, 4 * d_model, PART_BYTES)
    }

    /// Columns of the weight, in 32 bits at least.
    fn part(&self, columns: &Range<usize>) -> Tensor<2> {
        let d_model = self.weight.dims()[0];
        widened(self.weight.clone().slice([0..d_model, columns.clone()]))
    }
}
