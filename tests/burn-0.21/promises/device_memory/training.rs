//! The peak of training steps, and what they leave behind.

use std::sync::{Arc, Mutex};

use burn_gradient_release_device_memory::DeviceMemory;

use super::{ELEMENT_WISE, MATRICES, P, R, memory};
use crate::harness::prelude::*;

const STEPS: u64 = 10;

/// By then the states exist, and the kernels are tuned.
const SETTLED: usize = 2;

/// Numbers in a kernel's arguments, sums, the loss: everything that is no tensor of weight size.
const SLACK: u64 = 256 * 1024;

/// Bytes in use at the points of a step that matter, over what was in use before the run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    after_forward: u64,
    peak: u64,
    after_step: u64,
}

/// Bytes of each step of a run, and the weights after each of its steps.
pub(super) struct Measured {
    steps: Vec<Step>,
    weights: Vec<u64>,
}

impl Measured {
    /// The steps that are like all later ones.
    fn settled(&self) -> &[Step] {
        &self.steps[SETTLED..]
    }

    pub(super) fn peak(&self) -> u64 {
        let peaks = self.settled().iter().map(|step| step.peak);
        peaks.max().expect("there are steps")
    }

    /// The most that a step needs above what its forward pass leaves.
    pub(super) fn above_forward(&self) -> u64 {
        let needs = self.settled().iter();
        let needs = needs.map(|step| step.peak - step.after_forward.min(step.peak));
        needs.max().expect("there are steps")
    }
}

pub(super) fn measure<S, B, O>(
    memory: &DeviceMemory,
    start: &Start,
    mut optim: O,
    arm: fn(&mut O, S::Model<B>) -> S::Model<B>,
) -> Measured
where
    S: Scenario,
    B: AutodiffBackend,
    O: Optimizer<S::Model<B>, B>,
{
    let floor = memory.usage().in_use;
    let mut model = start.model::<S, B>();
    let mut measured = Measured {
        steps: Vec::new(),
        weights: Vec::new(),
    };
    for step in 0..STEPS {
        memory.reset_peak();
        model = arm(&mut optim, model);
        let loss = S::loss::<B>(&model, Size::Large, step);
        let after_forward = memory.usage().in_use - floor;
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        let after_step = memory.usage().in_use - floor;
        measured.steps.push(Step {
            after_forward,
            peak: memory.peak().in_use - floor,
            after_step,
        });
        measured.weights.push(Weights::of::<B, _>(&model).digest());
    }
    drop((model, optim));
    assert_eq!(memory.usage().in_use, floor, "a run leaves nothing behind");
    measured
}

fn plain<S: Scenario>(memory: &DeviceMemory, start: &Start) -> Measured {
    let optim = AdamConfig::new().init::<P, S::Model<P>>();
    measure::<S, P, _>(memory, start, optim, |_, model| model)
}

fn release<S: Scenario>(memory: &DeviceMemory, start: &Start) -> Measured {
    let optim = AdamConfig::new().init::<R, S::Model<R>>();
    let optim = optim.with_gradient_release();
    measure::<S, R, _>(memory, start, optim, |optim, model| optim.arm(RATE, model))
}

/// Two runs of the same training.
pub(in super::super) struct Saved {
    plain: Measured,
    release: Measured,
    /// Bytes of all parameters.
    parameters: u64,
}

/// Numbers and memory of the same steps: the weights are plain Burn's, and beyond what the forward
/// pass leaves, a step needs `gradients` times the largest gradient.
pub(in super::super) fn saves<S: Scenario>(gradients: u64) -> Saved {
    let memory = memory();
    let start = Start::new::<S>(Size::Large);
    let plain = plain::<S>(&memory, &start);
    let release = release::<S>(&memory, &start);
    assert_eq!(
        release.weights, plain.weights,
        "weights differ from plain Burn's"
    );

    let (all, largest) = parameter_bytes::<P, _>(&start.model::<S, P>());
    let (all, largest) = (all as u64, largest as u64);
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    println!(
        "P {:.2}, largest {:.2}; peak: plain {:.2}, release {:.2}; above the forward pass: plain \
         {:.2}, release {:.2} MiB; {:?}",
        mib(all),
        mib(largest),
        mib(plain.peak()),
        mib(release.peak()),
        mib(plain.above_forward()),
        mib(release.above_forward()),
        release.steps,
    );
    let bound = gradients * largest + SLACK;
    assert!(
        release.above_forward() <= bound,
        "over the bound of {bound}"
    );
    // What a step leaves is weights and states, however many steps there were.
    for step in release.settled() {
        assert_eq!(step.after_step, release.settled()[0].after_step, "growth");
        assert!(step.after_step <= 3 * all + SLACK, "{step:?}");
    }
    Saved {
        plain,
        release,
        parameters: all,
    }
}

impl Saved {
    /// Fails unless plain Burn is as much over its forward pass, and over the peak, as gradients
    /// that pile up make it.
    pub(in super::super) fn assert_plain_needs_more(&self) {
        let half = self.parameters / 2;
        assert!(self.release.above_forward() + half <= self.plain.above_forward());
        assert!(self.release.peak() + half <= self.plain.peak());
    }
}

#[test]
fn mlp() {
    saves::<Mlp>(MATRICES).assert_plain_needs_more();
}

/// Parameters that are used element by element, and nothing else.
#[derive(Module, Debug)]
pub(super) struct ScalesModel<B: Backend> {
    scales: Vec<Param<Tensor<B, 1>>>,
}

pub(super) struct Scales;

/// Elements of a scale, and how many there are.
const WIDTH: usize = 1 << 18;
const DEPTH: u64 = 20;

impl Scenario for Scales {
    type Model<B: AutodiffBackend> = ScalesModel<B>;

    fn init<B: AutodiffBackend>(_: Size, device: &B::Device) -> ScalesModel<B> {
        let scales = (0..DEPTH)
            .map(|seed| Param::from_tensor(noise(seed, [WIDTH], device)))
            .collect();
        ScalesModel { scales }
    }

    fn loss<B: AutodiffBackend>(model: &ScalesModel<B>, _: Size, step: u64) -> Tensor<B, 1> {
        let mut x = noise::<B, 1>(step, [WIDTH], &B::Device::default());
        for scale in &model.scales {
            x = (x * scale.val()).tanh();
        }
        x.square().mean()
    }
}

/// A gradient lives until the kernel that it is made in has run, and with it those that the same
/// kernel makes. Not until the end of the queue: of twenty gradients, each with three buffers of
/// Adam's, eighty would be in use by then. (Plain Burn does not need more here: activations are as
/// large as gradients, and go as those come.)
#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn one_fused_kernel_holds_its_gradients() {
    saves::<Scales>(ELEMENT_WISE);
}

/// What is in use at each parameter's step, over what the forward pass left, in the third step.
fn read_within<B, O>(
    memory: &DeviceMemory,
    start: &Start,
    adaptor: impl FnOnce(Hooked) -> O,
    arm: impl Fn(&mut O, <Mlp as Scenario>::Model<B>) -> <Mlp as Scenario>::Model<B>,
) -> Vec<i64>
where
    B: AutodiffBackend,
    O: Optimizer<<Mlp as Scenario>::Model<B>, B>,
{
    let readings = Arc::new(Mutex::new(Vec::new()));
    let (device, read) = (memory.clone(), readings.clone());
    let mut optim = adaptor(Hooked::with_hook(move |_, rate| {
        read.lock().expect("no panic").push(device.usage().in_use);
        rate
    }));
    let mut model = start.model::<Mlp, B>();
    let mut above = Vec::new();
    for step in 0..3 {
        readings.lock().expect("no panic").clear();
        model = arm(&mut optim, model);
        let loss = Mlp::loss::<B>(&model, Size::Large, step);
        let after_forward = memory.usage().in_use as i64;
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(RATE, model, grads);
        let readings = readings.lock().expect("no panic");
        above = readings
            .iter()
            .map(|read| *read as i64 - after_forward)
            .collect();
    }
    assert_eq!(above.len(), trainable::<B, _>(&model), "read at each step");
    above
}

/// Asked in the middle of backward, the device has no gradient but the one being applied: the
/// buffers of earlier ones are free.
#[test]
#[cfg_attr(only_software, ignore = "minutes on a driver in software")]
fn earlier_gradients_are_gone_when_the_next_is_applied() {
    let memory = memory();
    let start = Start::new::<Mlp>(Size::Large);
    let plain = read_within::<P, _>(&memory, &start, OptimizerAdaptor::from, |_, model| model);
    let release = read_within::<R, _>(
        &memory,
        &start,
        |hooked| OptimizerAdaptor::from(hooked).with_gradient_release(),
        |optim, model| optim.arm(RATE, model),
    );
    let (all, largest) = parameter_bytes::<P, _>(&start.model::<Mlp, P>());
    println!("{largest} bytes in the largest; release {release:?}, plain {plain:?}");
    // The gradient, and the one that flows on to the layer below: some rows of a matrix.
    let bound = (largest as u64 + SLACK) as i64;
    assert!(release.iter().all(|read| *read <= bound), "over {bound}");
    // Plain Burn has all of them when it begins to step.
    assert!(plain[0] >= all as i64 - bound);
}
