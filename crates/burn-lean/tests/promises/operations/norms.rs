//! Normalizations.

use burn::module::Param;
use burn::nn::{GroupNormConfig, RmsNormConfig};
use burn::tensor::Tensor;
use burn_lean::operations::{group_norm, layer_norm, rms_norm};

use super::harness::{assert_as_plain, assert_equal, noise, shaped};

const EPSILON: f64 = 1e-5;

/// Shapes: one row, odd sizes, one element, no rows; and one that is cut into chunks.
const SHAPES: [[usize; 3]; 6] = [
    [1, 1, 5],
    [2, 3, 7],
    [3, 5, 1],
    [0, 3, 4],
    [2, 0, 4],
    [3, 301, 513],
];

fn inputs(dims: [usize; 3]) -> Vec<Vec<f64>> {
    let around = |numbers: Vec<f64>, mean: f64| numbers.iter().map(|x| mean + x).collect();
    vec![
        around(noise(dims.iter().product(), 1), 0.5),
        around(noise(dims[2], 2), 1.0),
        noise(dims[2], 3),
    ]
}

/// Burn's own.
fn plain_layer_norm(dims: [usize; 3]) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
    move |leaves| {
        let [x, gamma, beta] = leaves else { panic!() };
        let x = shaped(x, dims);
        let (gamma, beta) = (gamma.clone(), Some(beta.clone()));
        burn::tensor::module::layer_norm(x, gamma, beta, EPSILON).flatten(0, 2)
    }
}

fn our_layer_norm(dims: [usize; 3]) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
    move |leaves| {
        let [x, gamma, beta] = leaves else { panic!() };
        let x = shaped(x, dims);
        layer_norm(x, gamma.clone(), Some(beta.clone()), EPSILON).flatten(0, 2)
    }
}

fn plain_rms_norm(dims: [usize; 3]) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
    move |leaves| {
        let [x, gamma] = leaves else { panic!() };
        // Not the module: it computes in `f32`.
        let x = shaped(x, dims);
        let rms = (x.clone().square().mean_dim(2) + EPSILON).sqrt();
        (x / rms * gamma.clone().unsqueeze()).flatten(0, 2)
    }
}

fn our_rms_norm(dims: [usize; 3]) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
    move |leaves| {
        let [x, gamma] = leaves else { panic!() };
        rms_norm(shaped(x, dims), gamma.clone(), EPSILON).flatten(0, 2)
    }
}

#[test]
fn layer_norm_is_that_of_burn() {
    for dims in SHAPES {
        let what = format!("layer_norm of {dims:?}");
        let (plain, ours) = (plain_layer_norm(dims), our_layer_norm(dims));
        assert_equal(&what, &inputs(dims), 64.0, &plain, &ours);
    }
}

#[test]
fn layer_norm_without_beta_is_that_of_burn() {
    let dims = [4, 3, 6];
    let plain = |leaves: &[Tensor<1>]| {
        let x = shaped(&leaves[0], dims);
        burn::tensor::module::layer_norm(x, leaves[1].clone(), None, EPSILON).flatten(0, 2)
    };
    let ours = |leaves: &[Tensor<1>]| {
        let x = shaped(&leaves[0], dims);
        layer_norm(x, leaves[1].clone(), None, EPSILON).flatten(0, 2)
    };
    assert_equal("layer_norm", &inputs(dims)[..2], 64.0, &plain, &ours);
}

#[test]
fn rms_norm_is_that_of_burn() {
    for dims in SHAPES {
        let what = format!("rms_norm of {dims:?}");
        let (plain, ours) = (plain_rms_norm(dims), our_rms_norm(dims));
        assert_equal(&what, &inputs(dims)[..2], 64.0, &plain, &ours);
    }
}

#[test]
fn group_norm_is_that_of_burn() {
    for (dims, groups) in [
        ([2, 6, 5], 3),
        ([3, 4, 1], 1),
        ([1, 4, 7], 4),
        ([0, 4, 3], 2),
        ([5, 64, 1031], 8),
    ] {
        let channels = dims[1];
        let inputs = vec![
            noise(dims.iter().product(), 1),
            noise(channels, 2),
            noise(channels, 3),
        ];
        let plain = |leaves: &[Tensor<1>]| {
            let [x, gamma, beta] = leaves else { panic!() };
            let config = GroupNormConfig::new(groups, channels).with_epsilon(EPSILON);
            let mut norm = config.init(&x.device());
            norm.gamma = Some(Param::from_tensor(gamma.clone()));
            norm.beta = Some(Param::from_tensor(beta.clone()));
            norm.forward(shaped(x, dims)).flatten(0, 2)
        };
        let ours = |leaves: &[Tensor<1>]| {
            let [x, gamma, beta] = leaves else { panic!() };
            let x = shaped(x, dims);
            let (gamma, beta) = (Some(gamma.clone()), Some(beta.clone()));
            group_norm(x, gamma, beta, groups, EPSILON).flatten(0, 2)
        };
        let what = format!("group_norm of {dims:?} in {groups}");
        if dims[0] > 0 {
            assert_equal(&what, &inputs, 64.0, &plain, &ours);
        } else {
            // Burn's refuses it.
            assert_equal(&what, &inputs, 64.0, &ours, &ours);
        }
    }
}

#[test]
fn group_norm_without_affine_is_that_of_burn() {
    let dims = [2, 6, 5];
    let plain = |leaves: &[Tensor<1>]| {
        let x = shaped(&leaves[0], dims);
        let config = GroupNormConfig::new(3, 6).with_affine(false);
        config.init(&x.device()).forward(x).flatten(0, 2)
    };
    let ours = |leaves: &[Tensor<1>]| {
        let x = shaped(&leaves[0], dims);
        group_norm(x, None, None, 3, EPSILON).flatten(0, 2)
    };
    assert_equal("group_norm", &[noise(60, 1)], 64.0, &plain, &ours);
}

/// Rows that statistics are hard of.
fn extreme_rows() -> Vec<Vec<f64>> {
    let numbers = noise(6, 4);
    let times = |factor: f64| numbers.iter().map(|x| x * factor).collect();
    let mut one_nan = numbers.clone();
    one_nan[2] = f64::NAN;
    let mut one_infinite = numbers.clone();
    one_infinite[2] = f64::INFINITY;
    vec![
        vec![0.0; 6],
        vec![3.0; 6],
        times(1e4),
        times(1e-10),
        times(1e15),
        one_nan,
        one_infinite,
    ]
}

#[test]
fn rows_of_extreme_numbers_are_as_with_burn() {
    for row in extreme_rows() {
        let what = format!("{row:?}");
        let dims = [1, 1, 6];
        let inputs = [row, noise(6, 2), noise(6, 3)];
        let (plain, ours) = (plain_layer_norm(dims), our_layer_norm(dims));
        assert_as_plain(&what, &inputs, 64.0, &plain, &ours);
        let (plain, ours) = (plain_rms_norm(dims), our_rms_norm(dims));
        assert_as_plain(&what, &inputs[..2], 64.0, &plain, &ours);
    }
}

#[test]
fn rms_norm_has_the_value_of_the_module() {
    for device in crate::harness::devices() {
        let x = crate::harness::numbers([3, 5, 7], 1, &device);
        let module = RmsNormConfig::new(7).with_epsilon(EPSILON).init(&device);
        let ours = rms_norm(x.clone(), module.gamma.val(), EPSILON);
        assert_eq!(ours.into_data(), module.forward(x).into_data());
    }
}
