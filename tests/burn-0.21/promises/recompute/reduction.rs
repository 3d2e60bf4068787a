//! Gradients that are reduced in an order that all replicas keep to, while each recomputes what it
//! wants.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use burn::module::list_param_ids;
use burn::tensor::ops::FloatTensor;
use burn_gradient_release::{GradientReduction, PendingGradient, Recipients, ReductionError};

use crate::harness::prelude::*;

/// A call of backward.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    BeginPart,
    Begin(ParamId),
}

/// One replica, which notes what it is asked.
struct Noted {
    order: Vec<ParamId>,
    calls: Mutex<Vec<Call>>,
    /// The gradient that it refuses.
    refused: Option<ParamId>,
}

struct Here(FloatTensor<Flex>);

impl PendingGradient<Flex> for Here {
    fn wait(self: Box<Self>) -> Result<Option<FloatTensor<Flex>>, ReductionError> {
        Ok(Some(self.0))
    }
}

impl GradientReduction<Flex> for Noted {
    fn begin_part(&self) -> Result<(), ReductionError> {
        self.calls.lock().unwrap().push(Call::BeginPart);
        Ok(())
    }

    fn begin(
        &self,
        param: ParamId,
        grad: FloatTensor<Flex>,
        _recipients: Recipients,
    ) -> Result<Box<dyn PendingGradient<Flex>>, ReductionError> {
        self.calls.lock().unwrap().push(Call::Begin(param));
        match self.refused == Some(param) {
            true => Err("another replica is gone".into()),
            false => Ok(Box::new(Here(grad))),
        }
    }

    fn order(&self) -> Option<Vec<ParamId>> {
        Some(self.order.clone())
    }

    fn max_in_flight(&self) -> NonZeroUsize {
        NonZeroUsize::new(2).unwrap()
    }
}

type Layers<B> = Vec<Linear<B>>;

fn layers() -> Layers<R> {
    let layer = || LinearConfig::new(4, 4).init(&Default::default());
    (0..5).map(|_| layer()).collect()
}

/// One part of the tape for each layer.
fn loss(layers: &[Linear<R>]) -> Tensor<R, 1> {
    let x = noise::<R, 2>(1, [8, 4], &Default::default());
    let layer = |x: Tensor<R, 2>, layer: &Linear<R>| checkpoint(|| layer.forward(x.clone()).tanh());
    layers.iter().fold(x, layer).mean()
}

fn optim(reduction: &Arc<Noted>) -> ReleaseOptimizer<Sgd<Flex>, Layers<R>, R> {
    let optim = super::recomputing(Recompute::Automatic);
    optim.with_reduction(reduction.clone())
}

/// The last layer is not used, in every other step, and the one before is frozen by its group.
#[test]
fn a_gradient_that_does_not_come_keeps_none_waiting() {
    let mut model = layers();
    let mut order = list_param_ids(&model);
    order.reverse();
    let reduction = Arc::new(Noted {
        order,
        calls: Mutex::default(),
        refused: None,
    });
    let frozen = ParamGroup::from_predicate("3.");
    let mut optim = optim(&reduction).with_group(frozen, GroupOptions::new().frozen());
    for used in [4, 5, 4] {
        let model_loss = |model: &Layers<R>| loss(&model[..used]);
        model = armed_step(RATE, model, &mut optim, model_loss);
        let calls = std::mem::take(&mut *reduction.calls.lock().unwrap());
        let of_layer = |call: &Call| match call {
            Call::Begin(param) => {
                let has = |layer: &Linear<R>| list_param_ids(layer).contains(param);
                model.iter().position(has)
            }
            Call::BeginPart => None,
        };
        let begun: Vec<_> = calls.iter().filter_map(of_layer).collect();
        let reduced = (0..used).rev().filter(|layer| *layer != 3);
        assert_eq!(
            begun,
            reduced.flat_map(|layer| [layer; 2]).collect::<Vec<_>>()
        );
        let two = calls
            .windows(2)
            .map(|two| (of_layer(&two[0]), of_layer(&two[1])));
        for (one, next) in two {
            let is_freed = one == next || one.is_none() || next.is_none();
            assert!(is_freed, "{used} layers are used: {calls:?}");
        }
    }
}

/// What is in flight and what waits for its turn is freed, as the optimizer and the model are.
#[test]
fn a_pass_that_panics_keeps_no_gradient() {
    let model = layers();
    // The gradients of the last layer are the first to come, and wait for the next one's.
    let ids = |layer: usize| list_param_ids(&model[layer]);
    let order = [ids(3), ids(4), ids(2), ids(1), ids(0)].concat();
    let reduction = Arc::new(Noted {
        refused: Some(ids(3)[1]),
        order,
        calls: Mutex::default(),
    });
    let mut optim = optim(&reduction);
    let model = optim.arm(RATE, model);
    let text = panic_of(|| loss(&model).backward());
    assert!(text.contains("another replica is gone"), "{text}");
    drop((model, optim));
    assert_eq!(Arc::strong_count(&reduction), 1);
}
