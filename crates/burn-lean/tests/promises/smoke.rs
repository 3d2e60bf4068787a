//! The smallest thing that can be right.

use burn::nn::{Linear, LinearConfig};

use crate::harness::{adamw, assert_same, flex, numbers};

#[test]
fn one_layer() {
    let device = flex();
    assert_same(
        3,
        &device,
        adamw,
        |device| -> Linear { LinearConfig::new(4, 3).init(device) },
        |model, step| model.forward(numbers([2, 4], step, &device)).square().mean(),
    );
}
