//! Contents of a scope, and what is refused.

use std::thread;

use burn_gradient_release::Recomputed;

use super::{Inner, TOLERANCE};
use crate::harness::prelude::*;
use crate::harness::run::{armed, ordinary};

type P = Plain<Inner>;
type R = Release<Inner>;

/// The gradients of two leaves, in plain Burn and with scopes.
fn same_gradients(
    plain: impl Fn(Tensor<P, 2>, Tensor<P, 2>) -> Tensor<P, 1>,
    scopes: impl Fn(Tensor<R, 2>, Tensor<R, 2>) -> Tensor<R, 1>,
) {
    fn gradients<B: AutodiffBackend>(
        loss: impl Fn(Tensor<B, 2>, Tensor<B, 2>) -> Tensor<B, 1>,
    ) -> [Option<Vec<f32>>; 2] {
        let device = Default::default();
        let leaves = [0, 1].map(|seed| noise::<B, 2>(seed, [4, 4], &device).require_grad());
        let [one, two] = leaves.clone();
        let grads = loss(one, two).backward();
        leaves.map(|leaf| leaf.grad(&grads)?.into_data().to_vec().ok())
    }

    turn::take::<Inner>();
    let plain = gradients(plain);
    let given = gradients(scopes);
    assert!(plain[0].is_some());
    for (given, expected) in given.iter().zip(&plain) {
        assert_eq!(given.is_some(), expected.is_some());
        let pairs = given.iter().flatten().zip(expected.iter().flatten());
        for (given, expected) in pairs {
            assert!(
                (given - expected).abs() <= TOLERANCE,
                "{given}, not {expected}"
            );
        }
    }
}

/// A test for each loss of two leaves: the same code for both, with `checkpoint` in it. Plain Burn's
/// backend only calls it.
macro_rules! same_gradients {
    ($($name:ident: |$one:ident, $two:ident| $loss:expr;)*) => {
        $(
            #[test]
            fn $name() {
                same_gradients(|$one, $two| $loss, |$one, $two| $loss);
            }
        )*
    };
}

same_gradients! {
    several_inputs_and_results: |a, b| {
        let (sum, product) = checkpoint(|| {
            let inner = (a.clone() * b.clone()).tanh();
            (inner.clone() + a.clone(), inner.matmul(b.clone()))
        });
        (sum * a).sum() + (product.exp() * b).mean()
    };

    one_scope_after_the_other_and_side_by_side: |a, b| {
        let x = checkpoint(|| a.clone().matmul(b.clone()).tanh());
        let left = checkpoint(|| x.clone().matmul(b.clone()).tanh());
        let right = checkpoint(|| (x.clone() * a.clone()).tanh());
        (left + right * x).mean()
    };

    a_scope_in_a_scope: |a, b| {
        let x = checkpoint(|| {
            let inner = checkpoint(|| a.clone().matmul(b.clone()).tanh());
            inner.clone() * inner
        });
        (x + a).square().mean()
    };

    a_result_that_nobody_uses: |a, b| {
        let _unused = checkpoint(|| a.clone().matmul(b.clone()).tanh());
        let (used, _unused) = checkpoint(|| (a.clone().exp(), b.clone().exp()));
        (used * b).mean()
    };

    what_is_detached_or_needs_no_gradient: |a, b| {
        let x = checkpoint(|| {
            let constant = a.clone().detach().exp();
            let seen = Tensor::from_inner(a.clone().inner()).tanh();
            let scaled = a.clone() * constant.clone() + seen;
            let untracked = constant.detach() * 2.0;
            scaled * b.clone() + untracked
        });
        x.square().mean()
    };

    what_is_read_inside: |a, b| {
        let x = checkpoint(|| {
            let scale: f32 = a.clone().abs().max().into_scalar();
            a.clone() / scale * b.clone()
        });
        x.square().mean()
    };

    ints_and_bools_go_in_and_out: |a, b| {
        let device = a.device();
        let rows = Tensor::<_, 1, Int>::from_ints([2, 0, 1, 3], &device);
        let (x, is_high) = checkpoint(|| {
            let x = a.clone().select(0, rows.clone()).matmul(b.clone());
            let is_high = x.clone().greater_elem(0.0);
            (
                x.clone().mask_fill(is_high.clone().bool_not(), 0.5),
                is_high,
            )
        });
        (x * b).mask_fill(is_high, 0.25).square().mean()
    };

    an_operation_with_several_results: |a, b| {
        let (highest, places) = checkpoint(|| (a.clone() * b.clone()).max_dim_with_indices(1));
        (highest + b.gather(1, places)).square().mean()
    };

    a_leaf_as_the_result: |a, b| {
        let same = checkpoint(|| a.clone());
        let x = checkpoint(|| same.clone() * b.clone());
        (x + same).square().mean()
    };

    a_loss_inside: |a, b| checkpoint(|| a.matmul(b).tanh().mean());
}

fn layers<B: Backend>() -> Vec<Linear<B>> {
    let device = Default::default();
    let layer = || LinearConfig::new(4, 4).init(&device);
    (0..3).map(|_| layer()).collect()
}

/// The layers and what is done after each.
fn deep<B: Backend>(model: &[Linear<B>], step: u64) -> Tensor<B, 2> {
    let x = noise::<B, 2>(step, [64, 4], &Default::default());
    model.iter().fold(x, |x, layer| {
        let x = layer.forward(x);
        (x.clone().exp().tanh() * x.clone().sin() + x.cos()).tanh()
    })
}

/// A loss in this many scopes, of a part of the rows each; without any, of all of them.
fn loss_in_scopes<B: Backend>(x: Tensor<B, 2>, scopes: usize) -> Tensor<B, 1> {
    if scopes == 0 {
        return x.square().sum();
    }
    let [rows, _] = x.dims();
    let parts = x.split(rows / scopes, 0).into_iter();
    let losses = parts.map(|x| checkpoint(|| x.square().sum()));
    losses
        .reduce(|sum, next| sum + next)
        .expect("there are rows")
}

/// What the last of four steps from these weights reports, and the weights after it.
fn reported(recompute: Recompute, bytes: &[u8], scopes: usize) -> (Recomputed, Weights) {
    let model = load::<R, _>(layers(), bytes, &Default::default());
    let loss = |model: &Vec<Linear<R>>, step| loss_in_scopes(deep::<R>(model, step), scopes);
    let optim = SgdConfig::new().init().with_gradient_release();
    let mut optim = optim.with_recompute(recompute);
    let (given, reports) = armed(model, &mut optim, 4, &loss);
    (reports[3].recomputed(), given.steps[3].clone())
}

#[test]
fn the_report_says_what_was_recomputed() {
    turn::take::<Inner>();
    let bytes = save::<P, _>(layers::<P>());
    let reported = |recompute| reported(recompute, &bytes, 0).0;
    assert_eq!(reported(Recompute::None), Recomputed::default());

    let automatic = reported(Recompute::Automatic);
    // `[64, 4]` enters each segment; a layer is a handful of operations.
    let unit = 64 * 4 * size_of::<f32>() as u64;
    assert!(automatic.segments > 0 && automatic.operations >= automatic.segments);
    assert!(automatic.kept_bytes >= unit && automatic.kept_bytes <= 4 * unit);
    let planned = automatic.planned_bytes.expect("there is a plan");

    let ample = reported(Recompute::Budget(1 << 30));
    assert_eq!([ample.segments, ample.operations], [0, 0]);
    // What cannot be done within a budget is said.
    let tight = reported(Recompute::Budget(1));
    assert_eq!(tight.planned_bytes, Some(planned));
    assert_eq!(tight.segments, automatic.segments);
}

/// As a loss over a large vocabulary, a part of the tokens in each scope.
#[test]
fn a_pass_that_ends_in_scopes_is_planned() {
    const SCOPES: usize = 4;

    turn::take::<Inner>();
    let bytes = save::<P, _>(layers::<P>());
    let plain = load::<P, _>(layers(), &bytes, &Default::default());
    let loss = |model: &Vec<Linear<P>>, step| loss_in_scopes(deep::<P>(model, step), SCOPES);
    let plain = ordinary(plain, &mut SgdConfig::new().init(), 4, &loss);
    let plain = &plain.steps[3];

    let (without, _) = reported(Recompute::Automatic, &bytes, 0);
    let (automatic, weights) = reported(Recompute::Automatic, &bytes, SCOPES);
    weights.assert_near(plain, TOLERANCE, "automatic");
    assert!(automatic.planned_bytes.is_some());

    let (ample, weights) = reported(Recompute::Budget(1 << 30), &bytes, SCOPES);
    weights.assert_near(plain, TOLERANCE, "within an ample budget");
    assert_eq!(ample.segments, SCOPES);
    // Nothing is kept while the scopes run: the last segment is recomputed, too. A layer is eight
    // operations, and a part of the rows is one.
    assert_eq!(automatic.operations - ample.operations, 3 * 8 + SCOPES);
    // Without scopes the end is kept: of the layers and the loss, which is two operations more.
    assert!(without.operations < 3 * 8 + 2, "{without:?}");
}

#[test]
fn a_second_backward_is_refused() {
    turn::take::<Inner>();
    let device = Default::default();
    let a = noise::<R, 2>(0, [4, 4], &device).require_grad();
    let x = checkpoint(|| a.clone().exp());
    let (one, two) = (x.clone().sum(), x.square().sum());
    drop(one.backward());
    let text = panic_of(|| two.backward());
    assert!(text.contains("second backward pass"), "{text}");
}

/// As in plain Burn, whose text it is.
#[test]
fn a_second_backward_through_what_is_kept_panics() {
    turn::take::<Inner>();
    let device = Default::default();
    let mut model: Linear<R> = LinearConfig::new(4, 4).init(&device);
    let optim = SgdConfig::new().init::<R, _>().with_gradient_release();
    let mut optim = optim.with_recompute(Recompute::Budget(u64::MAX));
    for step in 0..3 {
        model = optim.arm(RATE, model);
        let x = noise::<R, 2>(step, [2, 4], &device);
        let loss = model.forward(x).tanh().square().mean();
        let again = loss.clone();
        let grads = gradients(&model, loss);
        panic_of(|| again.backward());
        model = optim.step(RATE, model, grads);
    }
}

#[test]
fn a_tensor_that_comes_back_from_another_thread_is_refused() {
    turn::take::<Inner>();
    let device = Default::default();
    let a = noise::<R, 2>(0, [4, 4], &device).require_grad();
    let text = panic_of(|| {
        checkpoint(|| {
            let inside = a.clone().exp();
            let elsewhere = thread::spawn(move || inside.tanh()).join();
            elsewhere.expect("the other thread is not in the scope") * 2.0
        })
    });
    assert!(text.contains("another thread"), "{text}");
    // And the scope is closed.
    let gradient = a.clone().exp().sum().backward();
    assert!(a.grad(&gradient).is_some());
}

/// A tensor of a scope may go on to another thread once the scope is closed.
#[test]
fn a_result_on_another_thread() {
    turn::take::<Inner>();
    let device = Default::default();
    let a = noise::<R, 2>(0, [4, 4], &device).require_grad();
    let plain = a.clone().exp().tanh().sum().backward();
    let x = checkpoint(|| a.clone().exp());
    let grads = thread::spawn(move || x.tanh().sum().backward()).join();
    let grads = grads.expect("it runs backward");
    let (given, expected) = (a.grad(&grads), a.grad(&plain));
    assert!(given.is_some());
    assert_eq!(
        given.map(|given| given.into_data()),
        expected.map(|expected| expected.into_data())
    );
}

/// As many operations as a long recurrence has: freed one by one, not one within the other.
#[test]
fn a_long_chain_is_dropped() {
    turn::take::<Inner>();
    let device = Default::default();
    let a = noise::<R, 1>(0, [2], &device).require_grad();
    let mut x = a;
    for _ in 0..100 {
        x = checkpoint(|| (0..1_000).fold(x, |x, _| x * 1.0));
    }
    drop(x);
}
