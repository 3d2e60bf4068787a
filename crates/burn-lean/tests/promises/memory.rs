//! Bytes and numbers in one test: the peak of a step is the floor, and the weights are plain
//! Burn's.
//!
//! A test that counts bytes runs in a process of its own, as they are those of the whole process.

use burn_lean::EarlyGradients;

use crate::harness::prelude::*;
use crate::harness::{watched, zero_linear};
pub(crate) use crate::heap::{HEAP, peak_of, warm_threads};

#[derive(Module, Debug)]
pub(crate) struct Block {
    up: Linear,
    down: Linear,
}

impl Block {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.clone() + self.down.forward(relu(self.up.forward(x)))
    }
}

const WIDTH: usize = 128;
const LAYERS: usize = 24;

/// Bytes of all parameters, and of the largest.
const PARAMETERS: usize = LAYERS * 4 * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH);
const LARGEST: usize = 4 * 4 * WIDTH * WIDTH;

pub(crate) fn deep(device: &Device) -> Vec<Block> {
    let block = |_| Block {
        up: zero_linear(WIDTH, 4 * WIDTH, device),
        down: zero_linear(4 * WIDTH, WIDTH, device),
    };
    (0..LAYERS).map(block).collect()
}

pub(crate) fn forward(blocks: &[Block], batch: usize, step: usize) -> Tensor<1> {
    let x = numbers([batch, WIDTH], step, &flex());
    blocks
        .iter()
        .fold(x * 0.1, |x, block| block.forward(x))
        .square()
        .mean()
}

fn forward_recomputed(blocks: &[Block], batch: usize, step: usize) -> Tensor<1> {
    let x = numbers([batch, WIDTH], step, &flex());
    let run = |x, block: &Block| checkpoint(block, x, |block: &Block, x| block.forward(x));
    blocks.iter().fold(x * 0.1, run).square().mean()
}

fn adamw() -> ModuleOptimizer {
    AdamWConfig::new().init()
}

/// What a forward pass leaves on the heap for backward.
fn activations(loss: impl FnOnce() -> Tensor<1>) -> usize {
    let before = HEAP.current_usage();
    let loss = loss();
    let bytes = HEAP.current_usage() - before;
    // Frees the graph.
    loss.backward();
    bytes
}

/// Trains with gradient release; returns the bits after it, and the peak of each step above what was
/// in use before it.
fn train(
    optim: ModuleOptimizer,
    steps: usize,
    loss: impl Fn(&[Block], usize) -> Tensor<1>,
) -> (Bits, Vec<usize>) {
    let mut optim = optim.with_gradient_release();
    measured(steps, |model, step| {
        release_step(model, &mut optim, |model| loss(model, step))
    })
}

fn measured(
    steps: usize,
    mut step: impl FnMut(Vec<Block>, usize) -> Vec<Block>,
) -> (Bits, Vec<usize>) {
    let mut model = seeded(&flex(), deep);
    let mut peaks = Vec::new();
    for at in 0..steps {
        let (next, peak) = peak_of(|| step(model, at));
        model = next;
        peaks.push(peak);
    }
    (bits(&model), peaks)
}

/// In every step within 3 % of the floor: parameters, states, activations and the largest gradient.
/// That is 0.03 of 12.6 MiB of parameters and more, where plain Burn takes all of them again.
fn assert_floor(optim: fn() -> ModuleOptimizer, states: usize, batch: usize) {
    const STEPS: usize = 3;
    let model = seeded(&flex(), deep);
    assert_eq!(PARAMETERS, 4 * model.num_params());
    let (params, largest) = (PARAMETERS, LARGEST);
    let kept = activations(|| forward(&model, batch, 0));
    drop(model);
    let loss = |model: &[Block], step| forward(model, batch, step);
    let mut plain_optim = optim();
    let (expected, plain) = measured(STEPS, |model, step| {
        plain_step(model, &mut plain_optim, |model| loss(model, step))
    });
    drop(plain_optim);
    let (found, released) = train(optim(), STEPS, loss);
    assert_bits(&found, &expected, "released");
    println!(
        "plain {plain:?}, released {released:?}, floor {}",
        kept + largest
    );

    // The first step makes the states.
    let new_states = |step| if step == 0 { states * params } else { 0 };
    for (step, peak) in released.iter().enumerate() {
        let of_step = peak - new_states(step);
        let most = kept + largest + params * (1 + states) * 3 / 100;
        assert!(of_step <= most, "step {step}: {of_step} bytes of {most}");
    }
    // What the saving is measured against.
    assert!(
        plain[1] > released[1] + params / 2,
        "{plain:?}, {released:?}"
    );
}

#[test]
fn deep_with_momentum() {
    alone(|| assert_floor(momentum, 1, 1));
}

#[test]
fn deep_with_adamw() {
    alone(|| assert_floor(adamw, 2, 8));
}

#[test]
fn scopes_keep_their_inputs_alone() {
    alone(|| {
        const BATCH: usize = 256;
        let keep = |model: &[Block], step| forward(model, BATCH, step);
        let (expected, kept) = train(adamw(), 2, keep);
        let recompute = |model: &[Block], step| forward_recomputed(model, BATCH, step);
        let (found, recomputed) = train(adamw(), 2, recompute);
        assert_bits(&found, &expected, "recomputed");
        let (kept, recomputed) = (kept[1], recomputed[1]);
        // The inputs of all blocks; and of the one that runs backward what has 4 x WIDTH: before
        // and after relu, the gradients of both, and a temporary.
        let of_inputs = 4 * BATCH * WIDTH * (LAYERS + 1);
        let of_one = 4 * BATCH * 4 * WIDTH * 5;
        let most = of_inputs + of_one + 3 * LARGEST;
        assert!(
            recomputed < most,
            "{recomputed} bytes, expected at most {most}"
        );
        assert!(
            kept > 2 * recomputed,
            "kept {kept}, recomputed {recomputed}"
        );
    });
}

/// A window of micro-batches holds one set of sums, and one gradient.
#[test]
fn accumulation_holds_one_set_of_gradients() {
    alone(|| {
        let mut model = seeded(&flex(), deep);
        let mut optim = adamw().with_gradient_release();
        for window in 0..2 {
            let ((), peak) = peak_of(|| {
                let taken = std::mem::take(&mut model);
                for micro in 0..3 {
                    optim.accumulate(forward(&taken, 1, 4 * window + micro), &taken);
                }
                let loss = forward(&taken, 1, 4 * window + 3);
                model = optim.backward(LR, loss, taken);
            });
            let in_place = optim.last_step().unwrap().in_place();
            assert_eq!(in_place, 4 * LAYERS, "in window {window}");
            let states = if window == 0 { 2 * PARAMETERS } else { 0 };
            let most = states + PARAMETERS + 4 * LARGEST;
            assert!(
                peak < most,
                "window {window}: {peak} bytes, expected at most {most}"
            );
        }
    });
}

fn assert_no_growth(mut step: impl FnMut(usize)) {
    (0..20).for_each(&mut step);
    let before = HEAP.current_usage();
    (20..221).for_each(&mut step);
    let after = HEAP.current_usage();
    // Tables grow by doubling: some kilobytes. One gradient in each step would be 1 KiB x 200.
    assert!(
        after < before + 20_000,
        "{before} bytes, and after 200 times {after}"
    );
}

fn small(device: &Device) -> Vec<Linear> {
    (0..4)
        .map(|_| LinearConfig::new(16, 16).init(device))
        .collect()
}

fn small_loss(layers: &[Linear], step: usize, again: bool) -> Tensor<1> {
    let x = numbers([3, 16], step, &flex());
    let run = |x, layer: &Linear| match again {
        true => checkpoint(layer, x, |layer: &Linear, x: Tensor<2>| {
            layer.forward(x).tanh()
        }),
        false => layer.forward(x).tanh(),
    };
    layers.iter().fold(x, run).square().mean()
}

/// Burn frees a graph that nobody holds at the next backward pass. Windows are given up, and models with
/// their optimizers, too; and an average of weights makes new leaves in each step, which see no backward.
#[test]
fn nothing_grows_over_steps_and_what_is_given_up() {
    alone(|| {
        let mut optim = adamw().with_gradient_release();
        let mut model = seeded(&flex(), small).apply_reparameterization(EarlyGradients);
        let mut average = seeded(&flex(), small);
        assert_no_growth(|step| {
            for again in [false, true] {
                drop(small_loss(&model, step, again));
            }
            average = numbered(std::mem::take(&mut average));
            drop(small_loss(&average, step, step % 2 == 0).detach());
            let mut trial = adamw().with_gradient_release();
            let own = release_step(numbered(model.clone()), &mut trial, |model| {
                small_loss(model, step, true)
            });
            drop(small_loss(&own, step, true));
            drop((trial, own));
            optim.accumulate(small_loss(&model, step, true), &model);
            if step % 3 == 0 {
                drop(optim.take_sums(&model));
                return;
            }
            optim.measure(small_loss(&model, step, true), &model);
            let taken = std::mem::take(&mut model);
            let loss = small_loss(&taken, step, step % 2 == 0);
            let refused = optim.try_backward(f64::NAN, loss, taken).unwrap_err();
            let (taken, loss) = refused.into_given();
            model = optim.backward(LR, loss.unwrap(), taken);
            assert_eq!(optim.last_step().unwrap().in_place(), 8);
        });
    });
}

/// A panic inside backward takes the model with it, and frees all tensors. Burn keeps some bytes for each
/// node, as after any panic in a backward pass.
#[test]
fn a_panic_frees_the_model_that_it_takes() {
    alone(|| {
        const BYTES: usize = 4 * 256 * 256;
        let step = |_| {
            let model = [(); 2].map(|()| zero_linear(256, 256, &flex()));
            let fails = || panic!("in a step");
            let optim = watched(AdamWConfig::new().build(), fails);
            let mut optim = optim.with_gradient_release();
            let x = numbers::<2>([256, 256], 0, &flex());
            let loss = model[1].forward(model[0].forward(x)).square().mean();
            assert_panics(|| optim.backward(LR, loss, model), "in a step");
        };
        warm_threads();
        (0..3).for_each(step);
        let before = HEAP.current_usage();
        (0..10).for_each(step);
        let after = HEAP.current_usage();
        assert!(after < before + BYTES, "{before} bytes, and then {after}");
    });
}

/// As many blocks are kept as fit, no more bytes than asked for are, and the weights are the same.
#[test]
fn a_budget_keeps_what_fits() {
    alone(|| {
        const BATCH: usize = 256;
        let train = |budget: Option<&Budget>| {
            let mut model = seeded(&flex(), deep);
            let mut optim = SgdConfig::new().init().with_gradient_release();
            let mut kept = 0;
            for step in 0..3 {
                let taken = std::mem::take(&mut model);
                model = release_step(taken, &mut optim, |blocks| {
                    let before = HEAP.current_usage();
                    let x = numbers::<2>([BATCH, WIDTH], step, &flex()) * 0.1;
                    let mut pass = budget.map(Budget::pass);
                    let x = blocks.iter().fold(x, |x, block| match &mut pass {
                        Some(pass) => {
                            pass.checkpoint(block, x, |block: &Block, x| block.forward(x))
                        }
                        None => block.forward(x),
                    });
                    let loss = x.square().mean();
                    kept = HEAP.current_usage() - before;
                    loss
                });
            }
            (bits(&model), kept)
        };
        let (expected, all) = train(None);
        // Of each block its input, of the loss what `square` keeps, and the nodes of the tape.
        let inputs = 4 * BATCH * WIDTH * (LAYERS + 4);
        for part in [1, all / 3, 2 * all] {
            let budget = Budget::new(part as u64, || HEAP.current_usage() as u64);
            assert_eq!(budget.planned(), None);
            let (found, kept) = train(Some(&budget));
            assert_bits(&found, &expected, "a budget");
            assert!(
                kept <= part + inputs,
                "{kept} bytes are kept of {part}, inputs are {inputs}"
            );
            let planned = budget.planned().unwrap();
            let expected = match part {
                part if part > all => 0,
                // A block keeps as much as another.
                part => LAYERS - LAYERS * part / all,
            };
            assert!(
                planned.recomputed.abs_diff(expected) <= 1,
                "{planned:?} of {expected}"
            );
        }
    });
}

/// Adding gradient release copies no state, and a step those of one parameter at most.
#[test]
fn states_are_not_copied() {
    alone(|| {
        let (mut model, mut optim) = (seeded(&flex(), deep), adamw());
        model = plain_step(model, &mut optim, |model| forward(model, 1, 0));
        let (mut optim, added) = peak_of(|| optim.with_gradient_release());
        let loss = forward(&model, 1, 1);
        let (_model, stepped) = peak_of(|| optim.backward(LR, loss, model));
        println!(
            "added {added}, stepped {stepped}, states {}",
            2 * PARAMETERS
        );
        assert!(added <= LARGEST);
        // A gradient, two moments, and their copies.
        assert!(stepped <= 5 * LARGEST);
        const { assert!(8 * LARGEST < PARAMETERS) };
    });
}
