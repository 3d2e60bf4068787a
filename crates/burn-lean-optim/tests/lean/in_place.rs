//! A pass writes in place, but not into what somebody else holds.

use burn::{
    backend::Flex,
    optim::{AdamWConfig, RmsPropConfig},
    tensor::{Tensor, TensorPrimitive},
};
use burn_lean_optim::{AdamWState, InOnePass, Moment, RmsPropState};

use crate::harness::{Noise, Run};

const SHAPE: [usize; 2] = [100, 300];

fn address(tensor: &Tensor<Flex, 2>) -> usize {
    let TensorPrimitive::Float(tensor) = tensor.clone().into_primitive() else {
        unreachable!()
    };
    tensor.bytes().as_ptr() as usize
}

fn address_of_moment(moment: &Moment<Flex>) -> usize {
    let Moment::Float(floats) = moment else {
        panic!("not floats")
    };
    floats.bytes().as_ptr() as usize
}

#[test]
fn weight_and_moments_stay_where_they_are() {
    let mut noise = Noise(1);
    let mut run = Run::new(
        AdamWConfig::new().in_one_pass(),
        noise.tensor(SHAPE, Noise::number),
    );
    run.step(0.01, noise.tensor(SHAPE, Noise::number));
    let places = |run: &Run<_, Flex, 2>| {
        let state: &AdamWState<Flex> = run.state.as_ref().unwrap();
        let momentum = &state.momentum;
        [
            address(run.weight.as_ref().unwrap()),
            address_of_moment(&momentum.moment_1),
            address_of_moment(&momentum.moment_2),
        ]
    };
    let before = places(&run);
    for _ in 0..3 {
        run.step(0.01, noise.tensor(SHAPE, Noise::number));
    }
    assert_eq!(before, places(&run));
}

/// Burn's state of RMSProp holds its squares twice.
#[test]
fn squares_of_rmsprop_stay_where_they_are() {
    let mut noise = Noise(4);
    let weight = noise.tensor::<Flex, 2>(SHAPE, Noise::number);
    let mut run = Run::new(RmsPropConfig::new().in_one_pass(), weight);
    let mut places = Vec::new();
    for _ in 0..3 {
        run.step(0.01, noise.tensor(SHAPE, Noise::number));
        let state: &RmsPropState<Flex> = run.state.as_ref().unwrap();
        places.push(address_of_moment(&state.square_avg.square_avg));
    }
    assert!(
        places.windows(2).all(|pair| pair[0] == pair[1]),
        "{places:?}"
    );
}

#[test]
fn what_is_shared_is_copied_and_keeps_its_numbers() {
    let mut noise = Noise(2);
    let weight = noise.tensor::<Flex, 2>(SHAPE, Noise::number);
    let mut run = Run::new(AdamWConfig::new().in_one_pass(), weight);
    run.step(0.01, noise.tensor(SHAPE, Noise::number));
    let (held, record) = (run.weight.clone().unwrap(), run.state.clone().unwrap());
    let (weights, saved) = (run.weights(), run.saved());

    run.step(0.01, noise.tensor(SHAPE, Noise::number));
    assert_ne!(address(run.weight.as_ref().unwrap()), address(&held));
    assert_ne!(run.weights(), weights);
    assert_eq!(held.into_data().to_vec::<f32>().unwrap(), weights);
    run.state = Some(record);
    assert!(run.saved() == saved);
}

#[test]
#[should_panic(expected = "not of its parameter's shape")]
fn a_state_of_another_parameter_is_refused() {
    let mut noise = Noise(3);
    let mut run = Run::new(
        AdamWConfig::new().in_one_pass(),
        noise.tensor::<Flex, 2>(SHAPE, Noise::number),
    );
    run.step(0.01, noise.tensor(SHAPE, Noise::number));
    run.weight = Some(noise.tensor([SHAPE[1], SHAPE[0]], Noise::number));
    run.step(0.01, noise.tensor([SHAPE[1], SHAPE[0]], Noise::number));
}
