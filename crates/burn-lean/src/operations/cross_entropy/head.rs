//! The linear layer that makes the logits.

use std::ops::Range;

use burn::tensor::Tensor;
use burn::tensor::module::linear;

use crate::operations::chunks::{chunks, map_rows};
use crate::operations::linear::filled;
use crate::wide::{wide, widened};

/// How much of the weight, in 32 bits, is computed with at once: on Flex, which makes the output of
/// each product twice, and of weights in half precision, which are widened.
pub(super) const PART_BYTES: usize = 4 << 20;

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
        let bias = self.bias.clone().map(widened);
        if !self.is_widened() {
            return linear(widened(hidden), self.weight.clone(), bias);
        }
        let ([tokens, _], [_, classes]) = (hidden.dims(), self.weight.dims());
        let hidden = widened(hidden);
        let logits = filled([tokens, classes], hidden.dtype(), &hidden);
        let logits = self.parts().fold(logits, |logits, columns| {
            let part = hidden.clone().matmul(self.part(&columns));
            logits.slice_assign([0..tokens, columns], part)
        });
        match bias {
            Some(bias) => logits + bias.unsqueeze(),
            None => logits,
        }
    }

    /// The gradient of the hidden tokens from that of the logits, both in 32 bits at least.
    pub(super) fn of_hidden(&self, grad: Tensor<2>) -> Tensor<2> {
        if !self.is_widened() {
            return grad.matmul(self.weight.clone().transpose());
        }
        let tokens = grad.dims()[0];
        let part = |columns: Range<usize>| {
            let grad = grad.clone().slice([0..tokens, columns.clone()]);
            grad.matmul(self.part(&columns).transpose())
        };
        let sum = self.parts().map(part).reduce(|sum, part| sum + part);
        sum.unwrap_or_else(|| filled([tokens, self.weight.dims()[0]], grad.dtype(), &grad))
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
