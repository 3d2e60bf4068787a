//! Dropout. Each test runs in a process of its own, as it draws from the generator of a device.

use burn_lean::operations::{dropout, nn};

use crate::harness::prelude::*;

#[test]
fn the_mask_is_burns_and_the_same_in_backward() {
    alone(|| {
        // Several chunks, and no multiple of the 24 bits of a number.
        for dims in [[3, 5], [1, 24], [0, 4], [700, 1031]] {
            let device = flex();
            let x = numbers(dims, 1, &device).require_grad();
            let weights = numbers(dims, 2, &device);
            device.seed(7);
            let plain = DropoutConfig::new(0.3).init().forward(x.clone());
            let plain_grads = (plain.clone() * weights.clone()).sum().backward();
            device.seed(7);
            let ours = dropout(x.clone(), 0.3);
            let grads = (ours.clone() * weights).sum().backward();
            assert_eq!(ours.into_data(), plain.into_data());
            let grad = |grads| x.grad(grads).unwrap().into_data();
            assert_eq!(grad(&grads), grad(&plain_grads));
        }
    });
}

/// The factor of what is kept, 1 / 0.85, is no number of half precision: the product is rounded, and
/// not the factor.
#[test]
fn half_precision_is_rounded_once() {
    alone(|| {
        for dtype in [DType::BF16, DType::F16] {
            let number = |number: f32| Tensor::<2>::full([64, 64], number, (&flex(), dtype));
            let x = number(1.0234375).require_grad();
            let y = dropout(x.clone(), 0.15);
            let loss = (y.clone() * number(1.0234375)).sum();
            let grad = x.grad(&loss.backward()).unwrap();
            let kept = number(1.0234375 / 0.85).inner();
            for found in [y.inner(), grad] {
                let is_right = found.clone().equal(kept.clone());
                let is_right = is_right.bool_or(found.equal_scalar(0.0));
                assert!(is_right.all().into_scalar::<bool>(), "{dtype:?}");
            }
        }
    });
}

#[test]
fn so_many_are_dropped() {
    alone(|| {
        for device in devices() {
            device.seed(3);
            let ones = Tensor::<2>::ones([300, 301], &device);
            let dropped = dropout(ones, 0.25);
            let (zeros, mean) = (
                dropped.clone().equal_scalar(0.0).float().mean(),
                dropped.mean(),
            );
            let (zeros, mean) = (zeros.into_scalar::<f32>(), mean.into_scalar::<f32>());
            assert!((zeros - 0.25).abs() < 0.01, "{zeros}");
            assert!((mean - 1.0).abs() < 0.01, "{mean}");
        }
    });
}

#[test]
fn it_drops_in_training_alone() {
    let x = numbers([4, 5], 1, &flex());
    let module = nn::DropoutConfig::new(0.9).init();
    let inference = x.clone().inner();
    let same = module.forward(inference.clone());
    assert_eq!(same.into_data(), inference.into_data());
    assert_eq!(dropout(x.clone(), 0.0).into_data(), x.into_data());
}

/// All would be dropped, and what is left divided by zero.
#[test]
#[should_panic(expected = "below 1")]
fn all_cannot_be_dropped() {
    dropout(Tensor::<1>::ones([3], &flex()), 1.0);
}
