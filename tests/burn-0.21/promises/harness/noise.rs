//! Numbers that look random and are the same on every backend, thread and run.

use burn::module::{AutodiffModule, ModuleMapper, Param};
use burn::tensor::{Int, Shape, Tensor, TensorData, backend::AutodiffBackend, backend::Backend};

/// SplitMix64: small, and good enough for weights.
struct Source(u64);

impl Source {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In [-1, 1).
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// A float tensor with values in [-1, 1).
pub(crate) fn noise<B: Backend, const D: usize>(
    seed: u64,
    shape: [usize; D],
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::from_data(noise_data(seed, shape.into(), 1.0), device)
}

/// An int tensor with values below `bound`.
pub(crate) fn ids<B: Backend, const D: usize>(
    seed: u64,
    shape: [usize; D],
    bound: u64,
    device: &B::Device,
) -> Tensor<B, D, Int> {
    let mut source = Source(seed);
    let values: Vec<i64> = (0..shape.iter().product())
        .map(|_| (source.next() % bound) as i64)
        .collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn noise_data(seed: u64, shape: Shape, scale: f32) -> TensorData {
    let mut source = Source(seed);
    let values: Vec<f32> = (0..shape.num_elements())
        .map(|_| source.uniform() * scale)
        .collect();
    TensorData::new(values, shape)
}

/// Replaces every trainable weight by seeded noise of a sensible size.
pub(crate) fn reseed<B: AutodiffBackend, M: AutodiffModule<B>>(model: M, seed: u64) -> M {
    struct Reseed(u64);

    impl<B: AutodiffBackend> ModuleMapper<B> for Reseed {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let (id, tensor, mapper) = param.consume();
            if !tensor.is_require_grad() {
                return Param::from_mapped_value(id, tensor, mapper);
            }
            self.0 = self.0.wrapping_add(1);
            let shape = tensor.shape();
            let scale = match D {
                1 => 0.3,
                _ => 1.0 / (shape[D - 2].max(1) as f32).sqrt(),
            };
            let data = noise_data(self.0.wrapping_mul(0x5851_F42D), shape, scale);
            let tensor = Tensor::<B, D>::from_data(data, &tensor.device());
            // Vectors are mostly gains and biases: away from zero, gains keep the signal alive.
            let tensor = if D == 1 {
                tensor.add_scalar(0.7)
            } else {
                tensor
            };
            Param::from_mapped_value(id, tensor.detach().require_grad(), mapper)
        }
    }

    model.map(&mut Reseed(seed))
}
