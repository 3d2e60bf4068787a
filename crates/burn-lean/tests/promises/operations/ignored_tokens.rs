//! The fused head and loss of tokens that do not count.

use burn_lean::operations::{LinearCrossEntropy, linear_cross_entropy};

use crate::harness::prelude::*;

#[test]
fn tokens_that_are_all_ignored_are_as_with_burn() {
    for device in devices() {
        let hidden = numbers([3, 4], 1, &device).require_grad();
        let weight = numbers([4, 5], 2, &device).require_grad();
        let targets = Tensor::<1, Int>::from_ints([2, 2, 2], &device);
        let config = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![2]));
        let loss = config.init(&device);
        let value =
            linear_cross_entropy(&loss, hidden.clone(), weight.clone(), None, targets.clone());
        let plain = loss.forward(hidden.clone().matmul(weight.clone()), targets);
        let is_nan = |x: Tensor<1>| x.into_scalar::<f32>().is_nan();
        assert!(is_nan(plain.clone()) && is_nan(value.clone()));
        let (ours, plain) = (value.backward(), plain.backward());
        assert_eq!(
            weight.grad(&ours).unwrap().into_data(),
            weight.grad(&plain).unwrap().into_data()
        );
    }
}

/// PyTorch's ignored target, and the length of the vocabulary.
#[test]
fn ignored_targets_may_be_no_classes() {
    for weights in [None, Some(vec![1.0, 2.0, 3.0, 4.0, 5.0])] {
        let run = |targets: [i64; 3], pads: Vec<usize>| {
            let hidden = numbers([3, 4], 1, &flex()).require_grad();
            let config = CrossEntropyLossConfig::new().with_pad_tokens(Some(pads));
            let loss = config.with_weights(weights.clone()).init(&flex());
            let targets = Tensor::<1, Int>::from_ints(targets, &flex());
            let weight = numbers([4, 5], 2, &flex());
            let value = linear_cross_entropy(&loss, hidden.clone(), weight, None, targets);
            let grads = value.backward();
            (value.into_data(), hidden.grad(&grads).unwrap().into_data())
        };
        let outside = run([-100, 3, 5], vec![-100_i64 as usize, 5]);
        assert_eq!(outside, run([0, 3, 0], vec![0]));
    }
}

#[test]
fn an_ignored_token_whose_gradient_is_nan() {
    let hidden = Tensor::<2>::ones([4, 3], &flex()).require_grad();
    let weight = Tensor::<2>::ones([3, 5], &flex()).require_grad();
    let loss = CrossEntropyLossConfig::new()
        .with_pad_tokens(Some(vec![0]))
        .init(&flex());
    let targets = Tensor::<1, Int>::from_ints([1, 2, 0, 0], &flex());
    let losses = LinearCrossEntropy::new(&loss).forward_no_reduction(
        hidden.clone(),
        weight.clone(),
        None,
        targets,
    );
    let factors = Tensor::<1>::from_floats([1.0, 1.0, f32::NAN, f32::INFINITY], &flex());
    let grads = (losses * factors).sum().backward();
    for grad in [hidden.grad(&grads).unwrap(), weight.grad(&grads).unwrap()] {
        assert!(grad.is_finite().all().into_scalar::<bool>());
    }
    let bias = Tensor::<1>::ones([1], &flex());
    let targets = Tensor::<1, Int>::from_ints([1, 2, 0, 0], &flex());
    let run = || linear_cross_entropy(&loss, hidden, weight, Some(bias), targets);
    assert_panics(run, "a bias for each class");
}
