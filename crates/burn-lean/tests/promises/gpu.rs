//! The Cube backend, through wgpu on whatever Vulkan finds: the same numbers, in place, and less of
//! the device's memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::module::Lora;
use burn::optim::{AdamW, Optimizer};
use burn_lean::operations::{Nf4, Nf4Weight, nn};
use burn_lean::{DeviceMemoryInUse, EarlyGradients, reuse_device_memory};

use crate::harness::prelude::*;
use crate::harness::{distance, watched, zero_linear};

#[derive(Module, Debug)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

const WIDTH: usize = 64;
const LAYERS: usize = 8;

fn blocks(device: &Device) -> Vec<Block> {
    let block = |_| Block {
        norm: LayerNormConfig::new(WIDTH).init(device),
        up: LinearConfig::new(WIDTH, 4 * WIDTH).init(device),
        down: LinearConfig::new(4 * WIDTH, WIDTH).init(device),
    };
    (0..LAYERS).map(block).collect()
}

fn loss(blocks: &[Block], device: &Device, step: usize, again: bool) -> Tensor<1> {
    let run = |block: &Block, x: Tensor<2>| {
        x.clone()
            + block
                .down
                .forward(gelu(block.up.forward(block.norm.forward(x))))
    };
    let x = numbers([4, WIDTH], step, device);
    let x = blocks.iter().fold(x, |x, block| match again {
        true => checkpoint(block, x, run),
        false => run(block, x),
    });
    x.square().mean()
}

/// Keeps the other tests of this file from the device, whose memory is counted.
fn device_alone() -> MutexGuard<'static, ()> {
    static DEVICE: Mutex<()> = Mutex::new(());
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most bytes of a device that were seen.
#[derive(Default)]
struct Most {
    in_use: AtomicU64,
    reserved: AtomicU64,
}

impl Most {
    fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }
}

/// An optimizer that notes the bytes of the device when it steps a parameter.
fn metered(device: &Device, optim: impl Optimizer + 'static) -> (ModuleOptimizer, Arc<Most>) {
    let most = Arc::<Most>::default();
    let (device, noted) = (device.clone().inner(), most.clone());
    let optim = watched(optim, move || {
        // What was only queued is not in use yet.
        device.sync().unwrap();
        let usage = device.memory_pool_usage().expect("it is known");
        noted
            .in_use
            .fetch_max(usage.bytes_in_use, Ordering::Relaxed);
        noted
            .reserved
            .fetch_max(usage.bytes_reserved, Ordering::Relaxed);
    });
    (optim, most)
}

fn decaying() -> AdamW {
    AdamWConfig::new().with_weight_decay(0.01).build()
}

#[test]
fn numbers_and_memory() {
    let _device = device_alone();
    let device = Device::wgpu(Default::default()).autodiff();
    let params = LAYERS * (2 * WIDTH + 8 * WIDTH * WIDTH + 5 * WIDTH);
    let gradients = 4 * params as u64;

    let (mut plain, of_plain) = metered(&device, decaying());
    let mut model = seeded(&device, blocks);
    let mut expected = Vec::new();
    for step in 0..5 {
        model = plain_step(model, &mut plain, |model| loss(model, &device, step, false));
        expected.push(bits(&model));
    }
    drop((model, plain));
    device.clone().inner().memory_cleanup();

    for again in [false, true] {
        let (optim, of_release) = metered(&device, decaying());
        let mut optim = optim.with_gradient_release();
        let mut model = seeded(&device, blocks);
        for (step, expected) in expected.iter().enumerate() {
            model = release_step(model, &mut optim, |model| loss(model, &device, step, again));
            let report = optim.last_step().unwrap();
            assert_eq!(
                report.in_place(),
                6 * LAYERS,
                "step {step}, recomputed {again}"
            );
            assert_released(std::slice::from_ref(report), "on the GPU");
            for ((path, found), (_, expected)) in bits(&model).iter().zip(expected) {
                for (found, expected) in found.iter().zip(expected) {
                    // Fused kernels are others where tensors live shorter, and AdamW makes a step
                    // of its own size of a gradient near zero: a hundredth of a step at most.
                    let difference = (f32::from_bits(*found) - f32::from_bits(*expected)).abs();
                    let is_close = difference <= 0.01 * LR as f32;
                    assert!(is_close, "{path}, step {step}, {difference}");
                }
            }
        }
        let [plain, release] = [&of_plain, &of_release].map(|most| most.in_use());
        println!("in use at a step: plain {plain}, release {release}, gradients {gradients}");
        assert!(
            plain > release + gradients * 3 / 4,
            "recomputed {again}: {plain}, {release}"
        );
        drop((model, optim));
        device.clone().inner().memory_cleanup();
    }
}

/// The weights are on the host, and visit the device a layer at a time: of 24 layers, three at most are in
/// use there, a gradient among them.
#[cfg(feature = "flex")]
#[test]
fn a_model_on_the_host_trains_on_the_device() {
    use burn_lean::checkpoint_on;

    const WIDTH: usize = 256;
    const LAYERS: usize = 24;

    let _device = device_alone();
    let gpu = Device::wgpu(Default::default()).autodiff();
    let layers = |device: &Device| -> Vec<Linear> {
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(device);
        (0..LAYERS).map(layer).collect()
    };
    let loss = |layers: &Vec<Linear>, step| {
        let forward = |layer: &Linear, x: Tensor<2>| x.clone() + gelu(layer.forward(x)) * 0.01;
        let run = |x, layer| checkpoint_on(&gpu, layer, x, forward);
        let x = numbers::<2>([4, WIDTH], step, &gpu);
        layers.iter().fold(x, run).square().mean()
    };
    let train = |device: &Device| {
        let (optim, most) = metered(&gpu, SgdConfig::new().build());
        let mut optim = optim.with_gradient_release();
        let mut model = seeded(device, layers);
        for step in 0..3 {
            model = release_step(model, &mut optim, |model| loss(model, step));
            assert_eq!(optim.last_step().unwrap().in_place(), 2 * LAYERS);
        }
        let weights = bits(&model);
        drop((model, optim));
        gpu.clone().inner().memory_cleanup();
        (weights, most.in_use())
    };
    let ((expected, of_all), (found, of_visits)) = (train(&gpu), train(&flex()));
    let layer = (4 * WIDTH * (WIDTH + 1)) as u64;
    println!("in use at a step: all {of_all}, visits {of_visits}, a layer {layer}");
    assert!(of_all > LAYERS as u64 * layer, "{of_all}");
    // The inputs of the layers, which wait for backward, are 4 kB each.
    assert!(of_visits < 3 * layer, "{of_visits}, {layer}");
    // Alike but for a step, which Flex computes without contracting products and sums.
    assert!(distance(&found, &expected) < 1e-5);
}

/// Release needs less of a device than plain Burn, in use and reserved, and with one call, what is reserved
/// is what is in use. The first step, which moves weights and makes states, counts.
#[test]
fn what_is_reserved_is_in_use() {
    alone(|| {
        reuse_device_memory().unwrap();
        // Large, beside the 8 MiB that CubeCL reserves for small tensors.
        const WIDTH: usize = 1024;
        let device = Device::wgpu(Default::default()).autodiff();
        let model = || {
            let layer = |_| zero_linear(WIDTH, WIDTH, &device);
            seeded(&device, |_| (0..6).map(layer).collect::<Vec<_>>())
        };
        let loss = |model: &Vec<Linear>, step| {
            let x = numbers([4, WIDTH], step, &device);
            let run = |x: Tensor<2>, layer: &Linear| layer.forward(x).tanh();
            model.iter().fold(x, run).square().mean()
        };
        // The first one reserves less: what it gave back does not count for the other.
        let (optim, of_release) = metered(&device, decaying());
        let mut optim = optim.with_gradient_release();
        let mut model_of_release = model();
        for step in 0..3 {
            let step = |model: &_| loss(model, step);
            model_of_release = release_step(model_of_release, &mut optim, step);
        }
        drop((model_of_release, optim));
        device.clone().inner().memory_cleanup();
        let (mut plain, of_plain) = metered(&device, decaying());
        plain_run(model(), &mut plain, 0..3, loss);

        for (most, what) in [(&of_release, "release"), (&of_plain, "plain")] {
            let (in_use, reserved) = (most.in_use(), most.reserved());
            println!("{what}: {in_use} in use, {reserved} reserved");
            assert!(reserved * 4 <= in_use * 5, "{what}: {in_use} of {reserved}");
        }
        // Weights, moments and one gradient with its temporaries, and not all gradients.
        assert!(of_release.in_use() * 6 <= of_plain.in_use() * 5);
        assert!(of_release.reserved() * 6 <= of_plain.reserved() * 5);
    });
}

/// Nothing is set for nothing.
#[test]
fn reserved_memory_is_settled_by_the_first_device() {
    alone(|| {
        let device = Device::wgpu(Default::default());
        let _ = Tensor::<1>::zeros([1], &device).into_data();
        assert_eq!(reuse_device_memory(), Err(DeviceMemoryInUse));
    });
}

/// A model with norms in f32 and the rest in f16, as WGSL has no bf16, stepped in five bytes a
/// parameter: stopped after each step and resumed, it has the bits of a run that goes on.
#[cfg(all(feature = "operations", feature = "optim"))]
#[test]
fn mixed_precision_resumes_with_the_same_bits() {
    use burn_lean::MixedPrecision;
    use burn_lean::operations::nn;
    use burn_lean::optim::InFiveBytes;

    let _device = device_alone();

    #[derive(Module, Debug)]
    struct Mlp {
        norm: nn::LayerNorm,
        linear: nn::Linear,
    }

    let device = Device::wgpu(Default::default()).autodiff();
    let model = || {
        let model = seeded(&device, |device| Mlp {
            norm: nn::LayerNormConfig::new(WIDTH).init(device),
            linear: nn::LinearConfig::new(WIDTH, WIDTH).init(device),
        });
        MixedPrecision::f16().cast(model).unwrap()
    };
    let optim = || -> ReleaseOptimizer {
        let adamw = AdamWConfig::new().in_five_bytes(7).init();
        adamw.with_gradient_release().with_f32_gradients()
    };
    let step = |model: Mlp, optim: &mut ReleaseOptimizer, step| {
        release_step(model, optim, |model| {
            let x = numbers([4, WIDTH], step, &device).cast(DType::F16);
            let y = model.linear.forward(model.norm.forward(x));
            y.cast(DType::F32).square().mean()
        })
    };
    let (mut on, mut uninterrupted) = (model(), optim());
    let mut saved = (model().into_record(), OptimizerRecord::default());
    let before = bits(&on);
    for number in 0..5 {
        on = step(on, &mut uninterrupted, number);
        let mut resumed = optim().load_record(saved.1);
        let again = step(model().load_record(saved.0), &mut resumed, number);
        assert_eq!(bits(&again), bits(&on), "step {number}");
        saved = (again.into_record(), resumed.to_record());
    }
    assert_ne!(bits(&on), before);
}

/// Moments in host memory: the same bits as on the device, and none of the device's bytes. A run
/// that keeps them on the device goes on with its record.
#[cfg(all(feature = "optim", feature = "flex"))]
#[test]
fn states_in_host_memory() {
    use burn_lean::optim::{InOnePass, Lean, Offload};

    let _device = device_alone();
    let device = Device::wgpu(Default::default()).autodiff();
    let adamw = || AdamWConfig::new().in_one_pass();
    let bytes_in_use = || {
        let device = device.clone().inner();
        device.sync().unwrap();
        device.memory_cleanup();
        device
            .memory_pool_usage()
            .expect("it is known")
            .bytes_in_use
    };
    let run = |optim: ModuleOptimizer| {
        let mut optim = optim.with_gradient_release();
        let mut model = seeded(&device, blocks);
        let before = bytes_in_use();
        for step in 0..3 {
            model = release_step(model, &mut optim, |model| loss(model, &device, step, false));
        }
        (model, optim, bytes_in_use().saturating_sub(before))
    };
    let (model, optim, of_device) = run(adamw().init());
    let (other, mut offloaded, of_host) = run(adamw().offloaded().init());
    assert_eq!(bits(&other), bits(&model));
    let params = LAYERS * (2 * WIDTH + 8 * WIDTH * WIDTH + 5 * WIDTH);
    println!("on the device: {of_device} bytes, on the host: {of_host}");
    assert!(
        of_device >= of_host + 8 * params as u64,
        "{of_device} {of_host}"
    );

    let mut resumed = adamw().offloaded().init().with_gradient_release();
    resumed = resumed.load_record(optim.to_record());
    let step = |model, optim: &mut _| {
        release_step(model, optim, |model: &Vec<Block>| {
            loss(model, &device, 3, false)
        })
    };
    let found = step(model, &mut resumed);
    assert_eq!(bits(&found), bits(&step(other, &mut offloaded)));
}

/// Their numbers are those of Flex, and so are the packed weights. With gradients that come early.
#[test]
fn adapters_over_four_bits() {
    let _alone = device_alone();
    let train = |device: &Device| {
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).init(device);
        let layers: Vec<Linear> = (0..3).map(layer).collect();
        let nf4 = Nf4::new().with_lora(Lora::new(4, 8.0));
        let layers = nf4.pack(numbered(layers)).unwrap();
        let layers = seeded(device, |_| layers);
        let mut model: Vec<nn::Linear> = layers.into_iter().map(Into::into).collect();
        model = model.apply_reparameterization(EarlyGradients);
        let mut optim = adamw().with_gradient_release();
        for step in 0..3 {
            let x = numbers([1, 32, WIDTH], step, device);
            let run = |x: Tensor<3>, layer: &nn::Linear| layer.forward(x).tanh();
            let loss = model.iter().fold(x, run).square().mean();
            model = optim.backward(LR, loss, model);
        }
        assert_eq!(optim.last_step().unwrap().count(Outcome::Released), 6);
        let state = |layer: &nn::Linear| {
            let packed = layer.weight.reparameterization::<Nf4Weight>();
            packed.expect("it stays packed").state()
        };
        let states: Vec<_> = model.iter().map(state).collect();
        (states, bits(&model))
    };
    let (expected, expected_bits) = train(&flex());
    let (found, found_bits) = train(&Device::wgpu(Default::default()).autodiff());
    assert!(found == expected, "other weights were packed");
    let distance = distance(&found_bits, &expected_bits);
    // WGSL rounds otherwise, and Adam makes a step of what is all rounding.
    assert!(distance < 1e-3, "{distance:e}");
}
