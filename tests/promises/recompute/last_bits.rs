//! Probes.

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::{Linear, LinearConfig, Lstm, LstmConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_gradient_release::{Recompute, WithGradientRelease};

use crate::harness::models::*;
use crate::harness::run::{RATE, Start};
use crate::harness::{Plain, Release, Weights, noise};

struct Freeze {
    at: usize,
    phase: usize,
}
impl<B: Backend> ModuleMapper<B> for Freeze {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let at = self.at;
        self.at += 1;
        let frozen = match self.phase {
            0 => false,
            1 => at < 4,
            2 => at % 2 == 0,
            3 => at % 3 == 1,
            _ => at >= 4,
        };
        param.set_require_grad(!frozen)
    }
}

const PHASES: [usize; 10] = [0, 0, 1, 1, 0, 2, 2, 3, 4, 0];

fn frozen<S: Scenario>(name: &str) {
    let size = Size::Small;
    let start = Start::new::<S>(size);
    type P = Plain;
    type R = Release;
    macro_rules! both {
        ($recipe:expr, $label:expr) => {{
            let mut model = start.model::<S, P>();
            let mut optim = $recipe.init::<P, S::Model<P>>();
            let mut expected = Vec::new();
            for (step, phase) in PHASES.into_iter().enumerate() {
                model = model.map(&mut Freeze { at: 0, phase });
                let loss = S::loss::<P>(&model, size, step as u64);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                model = optim.step(RATE, model, grads);
                expected.push(Weights::of::<P, _>(&model));
            }
            for recompute in [
                Recompute::None,
                Recompute::Automatic,
                Recompute::Budget(1 << 12),
                Recompute::Budget(1 << 14),
            ] {
                let mut model = start.model::<S, R>();
                let mut optim = $recipe
                    .init::<R, S::Model<R>>()
                    .with_gradient_release()
                    .with_recompute(recompute);
                let mut distances = Vec::new();
                for (step, phase) in PHASES.into_iter().enumerate() {
                    model = model.map(&mut Freeze { at: 0, phase });
                    model = optim.arm(RATE, model);
                    let loss = S::loss::<R>(&model, size, step as u64);
                    let grads = GradientsParams::from_grads(loss.backward(), &model);
                    model = optim.step(RATE, model, grads);
                    let given = Weights::of::<R, _>(&model);
                    distances.push((given.distance(&expected[step]), given.changed(&expected[step])));
                }
                println!("frozen {name} {} {recompute:?}: {distances:?}", $label);
            }
        }};
    }
    both!(SgdConfig::new().with_momentum(Some(MomentumConfig::new())), "momentum");
    both!(AdamConfig::new(), "adam");
}

#[test]
fn frozen_in_mid_run() {
    frozen::<Mlp>("mlp");
    frozen::<Cnn>("cnn");
    frozen::<Transformer>("transformer");
    frozen::<Tied>("tied");
    frozen::<Recurrent>("recurrent");
    frozen::<NormalisedRecurrent>("normalised recurrent");
    frozen::<Views>("views");
    frozen::<WeightNorm>("weight norm");
    frozen::<Matrices>("matrices");
    frozen::<UNet>("u_net");
}

#[derive(Module, Debug)]
struct Sequence<B: Backend> {
    lstm: Lstm<B>,
    head: Linear<B>,
}

impl<B: AutodiffBackend> Sequence<B> {
    fn new() -> Self {
        let device = Default::default();
        Self {
            lstm: LstmConfig::new(4, 6, true).init(&device),
            head: LinearConfig::new(6, 3).init(&device),
        }
    }
    fn loss(&self, batch: usize, length: usize, step: u64) -> Tensor<B, 1> {
        let device = Default::default();
        let x = noise::<B, 3>(step, [batch, length, 4], &device);
        let (sequence, _) = self.lstm.forward(x, None);
        let target = noise::<B, 3>(step + 1000, [batch, length, 3], &device);
        (self.head.forward(sequence) - target).square().mean()
    }
}

#[test]
fn lengths_and_batches() {
    use crate::harness::weights::{load, save};
    let device = Default::default();
    let bytes = save::<Plain, _>(crate::harness::noise::reseed(Sequence::<Plain>::new(), 42));
    let passes: Vec<(usize, usize)> = (0..24u64)
        .map(|step| (1 + (step * 7 % 5) as usize, 2 + (step * 5 % 11) as usize))
        .collect();
    let recipe = SgdConfig::new().with_momentum(Some(MomentumConfig::new()));
    let mut model = load::<Plain, _>(Sequence::new(), &bytes, &device);
    let mut optim = recipe.init::<Plain, Sequence<Plain>>();
    let mut expected = Vec::new();
    for (step, (batch, length)) in passes.iter().enumerate() {
        let loss = model.loss(*batch, *length, step as u64);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        expected.push(Weights::of::<Plain, _>(&model));
    }
    let mut policies = vec![Recompute::None, Recompute::Automatic];
    policies.extend((6..18).map(|power| Recompute::Budget(1 << power)));
    policies.extend((6..18).map(|power| Recompute::Budget(3 << power)));
    for recompute in policies {
        let mut model = load::<Release, _>(Sequence::new(), &bytes, &device);
        let mut optim = recipe
            .init::<Release, Sequence<Release>>()
            .with_gradient_release()
            .with_recompute(recompute);
        let mut first = None;
        for (step, (batch, length)) in passes.iter().enumerate() {
            model = optim.arm(RATE, model);
            let loss = model.loss(*batch, *length, step as u64);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(RATE, model, grads);
            let given = Weights::of::<Release, _>(&model);
            if !given.same(&expected[step]) && first.is_none() {
                first = Some((step, given.distance(&expected[step]), given.changed(&expected[step])));
            }
        }
        println!("lstm {recompute:?}: {first:?}");
    }
}

fn detached<B: AutodiffBackend>(layers: &[Linear<B>], step: u64) -> (Tensor<B, 1>, Tensor<B, 2>) {
    let device = Default::default();
    let mut x = noise::<B, 2>(step, [8, 4], &device);
    let other = layers[0].weight.val().detach();
    for layer in layers {
        x = layer.forward(x).tanh();
        x = x.clone() + x.matmul(other.clone()).exp().tanh();
    }
    (x.square().mean(), other)
}

#[test]
fn detached_parameters() {
    use crate::harness::weights::{load, save};
    let device = Default::default();
    let layers = |_: ()| -> Vec<Linear<Plain>> { (0..5).map(|_| LinearConfig::new(4, 4).init(&device)).collect() };
    let bytes = save::<Plain, _>(layers(()));
    let recipe = SgdConfig::new();
    let mut model = load::<Plain, _>(layers(()), &bytes, &device);
    let mut optim = recipe.init::<Plain, Vec<Linear<Plain>>>();
    let mut expected = Vec::new();
    for step in 0..6 {
        let (loss, other) = detached(&model, step);
        let grads = loss.backward();
        let of = other.grad(&grads).map(|grad| grad.into_data());
        model = optim.step(RATE, model.clone(), GradientsParams::from_grads(grads, &model));
        expected.push((Weights::of::<Plain, _>(&model), of));
    }
    for is_armed in [false, true] {
        for recompute in [Recompute::None, Recompute::Automatic, Recompute::Budget(512), Recompute::Budget(1024)] {
            let init: Vec<Linear<Release>> = (0..5).map(|_| LinearConfig::new(4, 4).init(&device)).collect();
            let mut model = load::<Release, _>(init, &bytes, &device);
            let mut optim = recipe
                .init::<Release, Vec<Linear<Release>>>()
                .with_gradient_release()
                .with_recompute(recompute);
            for step in 0..6 {
                if is_armed {
                    model = optim.arm(RATE, model);
                }
                let (loss, other) = detached(&model, step);
                let grads = loss.backward();
                let of = other.grad(&grads).map(|grad| grad.into_data());
                model = optim.step(RATE, model.clone(), GradientsParams::from_grads(grads, &model));
                let (weights, expected) = &expected[step as usize];
                println!(
                    "detach armed {is_armed} {recompute:?} step {step}: weights {:e}, gradient same: {} some {} {}",
                    Weights::of::<Release, _>(&model).distance(weights),
                    of == *expected, of.is_some(), expected.is_some()
                );
            }
        }
    }
}
