//! A model for tests of optimizers.

use crate::harness::prelude::*;

/// Parameters of one and of two dimensions.
#[derive(Module, Debug)]
pub(crate) struct Net {
    embedding: Embedding,
    body: Vec<Linear>,
    norm: LayerNorm,
    head: Linear,
}

impl Net {
    pub(crate) fn new() -> Self {
        Self::of_width(10)
    }

    pub(crate) fn of_width(width: usize) -> Self {
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs);
        seeded(&flex(), |device| Self {
            embedding: EmbeddingConfig::new(12, 6).init(device),
            body: vec![linear(6, width).init(device), linear(width, 6).init(device)],
            norm: LayerNormConfig::new(6).init(device),
            head: linear(6, 3).init(device),
        })
    }

    pub(crate) fn loss(&self, step: usize) -> Tensor<1> {
        let device = flex();
        let x = self.embedding.forward(ids([3, 4], step, 12, &device));
        let inner = gelu(self.body[0].forward(x.clone()));
        let x = self.norm.forward(x + self.body[1].forward(inner));
        let x: Tensor<3> = self.head.forward(x);
        (x - numbers([3, 4, 3], step, &device)).square().mean()
    }
}
