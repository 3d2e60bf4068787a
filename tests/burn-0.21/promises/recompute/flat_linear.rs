//! A Linear's weight gradient as one matrix product: `burn-gradient-release-flat-linear`.

use burn::tensor::{TensorPrimitive, ops::ModuleOps};
use burn_gradient_release_flat_linear::FlatLinear;

use crate::harness::prelude::*;

type Flat = FlatLinear<Flex>;

const BATCH: usize = 8;
const WIDTH: usize = 256;

struct OneLinear;

impl Scenario for OneLinear {
    type Model<B: AutodiffBackend> = Linear<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> Linear<B> {
        LinearConfig::new(WIDTH, WIDTH).init(device)
    }

    fn loss<B: AutodiffBackend>(model: &Linear<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let x = noise::<B, 3>(step, [BATCH, 4, WIDTH], &Default::default());
        model.forward(x).tanh().square().mean()
    }
}

#[test]
fn the_same_but_for_rounding_and_exact_with_release() {
    let (start, adam) = (Start::new::<OneLinear>(Size::Small), AdamConfig::new());
    let burn = run::plain::<OneLinear, _, Plain<Flex>>(&start, &adam, 4);
    let flat = run::plain::<OneLinear, _, Plain<Flat>>(&start, &adam, 4);
    // The same products, added up in another order: eight sums of four against one of 32.
    flat.steps[3].assert_near(&burn.steps[3], 1e-5, "flat");
    let (given, _) = run::release::<OneLinear, _, Release<Flat>>(&start, &adam, 4);
    assert_same_steps(&given.steps, &flat.steps, "with release");
}

/// `[batch, 3, in]` and `[batch, 3, out]`: a matrix without rows or columns, or zeros.
#[test]
fn empty_dimensions() {
    fn ones(batch: usize, width: usize) -> Tensor<Flat, 3> {
        Tensor::ones([batch, 3, width], &Default::default())
    }

    for (batch, d_input, d_output) in [(2, 0, 4), (2, 4, 0), (2, 0, 0), (0, 4, 5)] {
        let [x, grad] =
            [d_input, d_output].map(|width| ones(batch, width).into_primitive().tensor());
        let weight = Flat::linear_weight_backward(x, grad);
        let weight = Tensor::<Flat, 2>::from_primitive(TensorPrimitive::Float(weight));
        let expected = TensorData::zeros::<f32, _>([d_input, d_output]);
        weight.into_data().assert_eq(&expected, true);
    }
}

#[test]
fn no_gradient_for_each_element_of_the_batch() {
    alone(|| {
        fn peak<I: Backend>(start: &Start) -> usize {
            let model = start.model::<OneLinear, Plain<I>>();
            // The lowest of some: a thread that first works in one of them gets its buffers
            // there.
            let peaks = (0..5).map(|step| {
                let before = ALLOCATIONS.current_usage();
                ALLOCATIONS.reset_peak_usage();
                drop(OneLinear::loss(&model, Size::Small, step).backward());
                ALLOCATIONS.peak_usage() - before
            });
            peaks.min().expect("there are steps")
        }
        let start = Start::new::<OneLinear>(Size::Small);
        let weight = WIDTH * WIDTH * size_of::<f32>();
        let (flat, burn) = (peak::<Flat>(&start), peak::<Flex>(&start));
        println!("flat {flat}, Burn's own {burn} bytes; a weight takes {weight}");
        // The gradient, and what the matrix product takes.
        assert!(flat < 3 * weight);
        assert!(burn > BATCH * weight, "there is nothing to save any more");
    });
}
