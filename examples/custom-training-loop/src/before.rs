//! The loop on plain Burn.

use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::Device;

use crate::model::{Mlp, Outcome, saddle};

pub(crate) fn train(steps: usize) -> Outcome {
    let device = Device::flex().autodiff();
    let (points, targets) = saddle(&device);
    let mut model = Mlp::new(&device);
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
