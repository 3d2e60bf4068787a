//! The loop on plain Burn.

use burn::{
    backend::{Autodiff, Flex},
    optim::{AdamConfig, GradientsParams, Optimizer},
};

use crate::model::{Mlp, Outcome, saddle};

type B = Autodiff<Flex>;

pub(crate) fn train(steps: usize) -> Outcome<B> {
    let device = Default::default();
    let (points, targets) = saddle::<B>(&device);
    let mut model = Mlp::<B>::new(&device);
    let mut optim = AdamConfig::new().init();
    let mut last = f32::NAN;

    for step in 0..steps {
        let lr = 1e-3 / (1.0 + 0.01 * step as f64);
        let loss = model.loss(points.clone(), targets.clone());
        last = loss.clone().into_scalar();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(lr, model, grads);
    }
    Outcome { loss: last, model }
}
