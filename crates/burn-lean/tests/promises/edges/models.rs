//! Models that use their parameters in unusual ways, and unusual surroundings of a step.

use std::sync::{Arc, Mutex};

use burn::tensor::activation::tanh;

use crate::harness::Named;
use crate::harness::prelude::*;
use crate::harness::watched_adamw;

fn matrix(seed: usize) -> Param<Tensor<2>> {
    Param::from_tensor(numbers([4, 4], seed, &flex()) * 0.6)
}

type Two = [Param<Tensor<2>>; 2];

fn two() -> Two {
    [1, 2].map(matrix)
}

#[test]
fn parameters_used_through_views_only() {
    let make = || {
        let vector = |seed| Param::from_tensor(numbers::<1>([4], seed, &flex()));
        let sliced = Param::from_tensor(numbers::<2>([4, 8], 2, &flex()));
        (matrix(1), vector(3), sliced, vector(4))
    };
    both_ways(BOTH, 5, make, |(matrix, bias, sliced, expanded), step| {
        let x = numbers([3, 4], step, &flex());
        let x = x.matmul(matrix.val().transpose()) + bias.val().reshape([1, 4]);
        let left = x.clone().matmul(sliced.val().slice([0..4, 0..4]));
        let right = x.matmul(sliced.val().slice([0..4, 4..8]).swap_dims(0, 1));
        let expanded = expanded.val().unsqueeze::<2>().expand([3, 4]);
        (gelu(left) * right + expanded).square().mean()
    });
}

/// One that is the loss itself; another depth in each step; some used in some steps only.
#[test]
fn another_graph_in_each_step() {
    both_ways(BOTH, 3, two, |[a, b], _| a.val().mean() + b.val().sum());
    both_ways(BOTH, 5, small, |model, step| {
        let mut x = numbers([3, 4], step, &flex());
        for _ in 0..[3, 1, 4, 2, 5][step] {
            x = tanh(model.forward(x.clone())) + x;
        }
        x.square().mean()
    });
    both_ways(BOTH, 6, two, |weights, step| {
        let x = numbers::<2>([3, 4], step, &flex());
        tanh(x.matmul(weights[step % 2].val())).square().mean()
    });
}

/// A branch that leads to no loss. Which graphs Burn forgets is decided by the order of a hash set, so
/// each is run often.
#[test]
fn uses_that_lead_nowhere() {
    for _ in 0..30 {
        both_ways(
            &BOTH[..1],
            2,
            || [1, 2, 3].map(matrix),
            |weights, step| {
                let x = numbers::<2>([4, 4], step, &flex());
                let [a, b, c] = [0, 1, 2].map(|at: usize| weights[at].val());
                let live = b.tanh();
                let _metric = (live.clone() * a.clone() + c).sum();
                (live.matmul(x) * a).square().mean()
            },
        );
    }
}

/// The loss is on Flex.
#[test]
#[cfg(feature = "ndarray")]
#[allow(deprecated)]
fn a_model_of_two_backends() {
    let make = || {
        (
            Small::new(&flex()),
            Small::new(&Device::ndarray().autodiff()),
        )
    };
    both_ways(BOTH, 4, make, |(here, there), step| {
        here.loss(step) + there.loss(step).to_device(&flex())
    });
}

/// An optimizer whose step trains another model, as one that learns its rate does.
#[test]
fn training_within_a_step() {
    let expected = plain(&[0, 1, 2]).0;
    let inner = Arc::new(Mutex::new(Some((
        small(),
        adamw().with_gradient_release(),
        0,
    ))));
    let trained = inner.clone();
    let optim = watched_adamw(move || {
        let mut inner = trained.lock().unwrap();
        let (model, mut optim, step) = inner.take().unwrap();
        let x = numbers::<2>([3, 4], step, &flex());
        let loss = checkpoint(&model, x, Small::forward).square().mean();
        *inner = Some((optim.backward(LR, loss, model), optim, step + 1));
    });
    let mut optim = optim.with_gradient_release();
    let mut model = small();
    for step in 0..3 {
        model = release_step(model, &mut optim, |model| model.loss(step));
        assert_eq!(optim.last_step().unwrap().count(Outcome::Released), PARAMS);
    }
    assert_eq!(bits(&model), bits(&expected));
    let (model, _, steps) = inner.lock().unwrap().take().unwrap();
    assert_eq!(steps, 3 * PARAMS);
    let batches: Vec<usize> = (0..steps).collect();
    assert_eq!(bits(&model), bits(&plain(&batches).0));
}

/// Beside one that has some: they have a gradient without elements, whose norm is zero.
#[derive(Module, Debug)]
struct Hollow {
    vector: Param<Tensor<1>>,
    matrix: Param<Tensor<2>>,
    weight: Param<Tensor<1>>,
    unused: Param<Tensor<3>>,
}

impl Hollow {
    fn new(dtype: DType) -> Self {
        let device = flex();
        let options = || (&device, dtype);
        Self {
            vector: Param::from_tensor(Tensor::zeros([0], options())),
            matrix: Param::from_tensor(Tensor::zeros([4, 0], options())),
            weight: Param::from_tensor(Tensor::ones([3], options())),
            unused: Param::from_tensor(Tensor::zeros([2, 0, 1], options())),
        }
    }

    fn loss(&self, _: usize) -> Tensor<1> {
        let of_matrix = self.matrix.val().square().sum();
        self.weight.val().square().sum() + self.vector.val().square().sum() + of_matrix
    }
}

fn assert_hollow(optims: &[Named], dtype: DType) {
    let make = || Hollow::new(dtype);
    for reports in both_ways(optims, 5, make, Hollow::loss) {
        let released = reports.last().unwrap().count(Outcome::Released);
        assert_eq!(released, 3, "{dtype:?}");
    }
}

#[test]
fn parameters_without_elements() {
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        assert_hollow(BOTH, dtype);
    }
}

/// Optimizers that are asked about a parameter before it is stepped.
#[cfg(feature = "optim")]
#[test]
fn optimizers_are_asked_about_parameters_without_elements() {
    use burn_lean::optim::{InFiveBytes, InOnePass, Lean};

    const IN_ONE_PASS: Named = ("in one pass", || AdamWConfig::new().in_one_pass().init());
    const IN_FIVE_BYTES: Named = ("in five bytes", || {
        AdamWConfig::new().in_five_bytes(7).init()
    });
    for dtype in [DType::F32, DType::F64] {
        assert_hollow(&[IN_ONE_PASS], dtype);
    }
    for dtype in [DType::BF16, DType::F16] {
        assert_hollow(&[IN_ONE_PASS, IN_FIVE_BYTES], dtype);
    }
}

/// The gradient of the weight is 2, so that its norm is the root of 12.
#[test]
fn gradients_without_elements_are_clipped() {
    let clippings = [
        NormClipping::GlobalNorm { max_norm: 100.0 },
        NormClipping::ZClip(ZClipConfig::new()),
        NormClipping::Adaptive(AdaptiveClippingConfig::new().with_clip_factor(100.0)),
        NormClipping::AutoClip(AutoClipConfig::new()),
    ];
    for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
        let start = || Hollow::new(dtype);
        let (_, expected) = plain_run(start(), &mut adamw(), 0..1, Hollow::loss);
        for clipping in clippings {
            let optim = adamw().with_gradient_release().with_norm_clipping(clipping);
            let mut optim = optim.with_grad_norm();
            let model = match optim.needs_two_passes() {
                true => optim.two_passes(LR, start(), |model| model.loss(0)).0,
                false => release_step(start(), &mut optim, |model| model.loss(0)),
            };
            let what = format!("{clipping:?} in {dtype:?}");
            assert_bits(&bits(&model), &expected[0], &what);
            let norm = optim.last_step().unwrap().grad_norm().unwrap();
            assert!((norm - 12f64.sqrt()).abs() < 1e-6, "{what}: {norm}");
        }
    }
    let model = Hollow::new(DType::F32);
    let mut grads = GradientsParams::from_grads(model.loss(0).backward(), &model);
    let norm = burn_lean::clip_grad_norm(&model, &mut grads, 100.0);
    assert!((norm - 12f64.sqrt()).abs() < 1e-6, "{norm}");
}
