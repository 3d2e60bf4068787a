//! Bytes that an operation keeps for the backward pass, and the peak of that.

use burn::nn::RotaryEncodingConfig;
use burn::nn::transformer::PositionWiseFeedForwardConfig;
use burn::tensor::activation;
use burn_lean::operations::nn::LeanModule;
use burn_lean::operations::{
    Attention, dropout, gelu, group_norm, layer_norm, linear, rms_norm, rotary_encoding, silu,
    softmax, swiglu,
};

use crate::harness::prelude::*;
use crate::heap::{HEAP, warm_threads};

/// Rows and width of the input.
const DIMS: [usize; 2] = [1024, 1024];

/// Bytes of the input.
const INPUT: usize = 4 << 20;

/// Small tensors and Burn's bookkeeping.
const SMALL: usize = 64 << 10;

/// What an operation keeps for backward that did not exist before and is not its output, and the
/// bytes that its backward pass needs beyond those.
struct Bytes {
    kept: usize,
    backward: usize,
}

/// Of an operation on a leaf, and of backward from what `loss` makes of its output.
fn bytes_of<const D: usize, const E: usize>(
    leaf: &Tensor<D>,
    op: impl FnOnce() -> Tensor<E>,
    loss: impl FnOnce(Tensor<E>) -> Tensor<1>,
) -> Bytes {
    warm_threads();
    let before = HEAP.current_usage();
    let y = op();
    // An activation that is used again: the output is not the operation's alone.
    let output = y.clone();
    let kept = HEAP.current_usage() - before - 4 * y.shape().num_elements();
    let loss = loss(y);
    HEAP.reset_peak_usage();
    let before = HEAP.current_usage();
    let grads = loss.backward();
    let backward = HEAP.peak_usage() - before;
    assert!(leaf.grad(&grads).is_some());
    drop(output);
    Bytes { kept, backward }
}

fn bytes(op: impl Fn(Tensor<2>) -> Tensor<2>) -> Bytes {
    bytes_from(DIMS, op)
}

fn bytes_from(dims: [usize; 2], op: impl Fn(Tensor<2>) -> Tensor<2>) -> Bytes {
    let x = numbers(dims, 1, &flex()).require_grad();
    bytes_of(&x, || op(x.clone()), Tensor::sum)
}

fn print(name: &str, plain: &Bytes, ours: &Bytes) {
    let tensors = |bytes| bytes as f64 / INPUT as f64;
    println!(
        "{name}: keeps {:.2} tensors of the input's size, Burn's {:.2}; backward needs {:.2}, \
         Burn's {:.2}",
        tensors(ours.kept),
        tensors(plain.kept),
        tensors(ours.backward),
        tensors(plain.backward),
    );
}

/// Bytes of the chunks of a tensor that are computed at once: 256 KiB on each thread.
fn chunks() -> usize {
    let threads = std::thread::available_parallelism().unwrap().get();
    threads.min(8) * (256 << 10)
}

/// That an operation keeps only what exists anyway, and less than Burn's where that keeps more; and
/// that backward makes the gradients and no more than chunks beside them.
fn assert_little(
    name: &str,
    plain: impl Fn(Tensor<2>) -> Tensor<2>,
    ours: impl Fn(Tensor<2>) -> Tensor<2>,
) {
    let (plain, ours) = (bytes(plain), bytes(ours));
    print(name, &plain, &ours);
    assert!(ours.kept <= SMALL, "{name} keeps {} bytes", ours.kept);
    assert!(ours.kept <= plain.kept, "{name}");
    // The gradient of the output, in the same memory that of the input, and chunks.
    let limit = INPUT + 6 * chunks() + SMALL;
    let (plain, ours) = (plain.backward, ours.backward);
    assert!(ours <= limit, "backward of {name} needs {ours} of {limit}");
    assert!(ours < plain, "backward of {name}: {ours}, Burn's {plain}");
}

#[test]
fn operations_keep_their_input_or_their_output() {
    alone(|| {
        let gamma = numbers([DIMS[1]], 2, &flex()).require_grad();
        let plain_norm =
            |x| burn::tensor::module::layer_norm(x, gamma.clone(), Some(gamma.clone()), 1e-5);
        let norm = |x| layer_norm(x, gamma.clone(), Some(gamma.clone()), 1e-5);
        assert_little("layer_norm", plain_norm, norm);

        let plain_rms = |x: Tensor<2>| {
            let rms = (x.clone().square().mean_dim(1) + 1e-5).sqrt();
            x / rms * gamma.clone().unsqueeze()
        };
        assert_little("rms_norm", plain_rms, |x| rms_norm(x, gamma.clone(), 1e-5));

        // A sum that goes on as the residual, and its norm: the sum is kept once.
        let residual = numbers(DIMS, 3, &flex());
        let of_sum = bytes(|x| rms_norm(x + residual.clone(), gamma.clone(), 1e-5));
        assert!(of_sum.kept <= INPUT + SMALL, "{}", of_sum.kept);

        let plain_group = |x: Tensor<2>| {
            let x = x.reshape([1024, 8, 128]);
            let x = x.clone() - x.mean_dim(2);
            let x = x.clone() / (x.square().mean_dim(2) + 1e-5).sqrt();
            x.reshape(DIMS) * gamma.clone().unsqueeze() + gamma.clone().unsqueeze()
        };
        let group = |x| group_norm(x, Some(gamma.clone()), Some(gamma.clone()), 8, 1e-5);
        assert_little("group_norm", plain_group, group);

        let (plain, ours) = (bytes(activation::gelu), bytes(gelu));
        print("gelu", &plain, &ours);
        assert!(ours.kept <= SMALL && ours.backward <= INPUT + 2 * chunks() + SMALL);
        assert_little("silu", activation::silu, silu);
        let encoding = RotaryEncodingConfig::new(DIMS[0], DIMS[1]).init(&flex());
        let frequencies = encoding.freq_complex.clone();
        let rotate = |x| rotary_encoding(x, frequencies.clone());
        assert_little("rotary_encoding", |x| encoding.forward(x), rotate);
        let plain_softmax = |x| activation::softmax(x, 1);
        assert_little("softmax", plain_softmax, |x| softmax(x, 1));
    });
}

#[test]
fn attention_keeps_no_scores() {
    /// Bytes of query, key, value and output each, and of the scores.
    const HEADS: usize = 1 << 19;
    const SCORES: usize = 8 << 20;
    type Heads = [Tensor<4>; 3];
    fn of(op: impl FnOnce(Heads) -> Tensor<4>) -> Bytes {
        let leaf = numbers([2, 4, 512, 32], 1, &flex()).require_grad();
        // As from linear layers: nobody else holds them, and they are `[batch, time, heads, size]`.
        let heads = [1.0, 2.0, 3.0].map(|factor| {
            let flat: Tensor<4> = (leaf.clone() * factor).reshape([2, 512, 4, 32]);
            flat.swap_dims(1, 2)
        });
        bytes_of(&leaf, || op(heads), Tensor::sum)
    }
    alone(|| {
        for drop in [0.0, 0.1] {
            let plain = of(|[query, key, value]| {
                let scores = query.matmul(key.transpose()) / 32_f64.sqrt();
                let weights = activation::softmax(scores, 3);
                let dropout = DropoutConfig::new(drop).init();
                dropout.forward(weights).matmul(value)
            });
            let ours = of(|[query, key, value]| {
                let attention = Attention::new().with_dropout(drop);
                attention.forward(query, key, value)
            });
            print(&format!("attention with dropout {drop}"), &plain, &ours);
            let bits = if drop > 0.0 { SCORES / 24 } else { 0 };
            assert!(ours.kept <= bits + SMALL, "{} bytes kept", ours.kept);
            assert!(plain.kept >= SCORES, "{} bytes kept by Burn's", plain.kept);
            let limit = 10 * HEADS + SMALL;
            assert!(ours.backward <= limit, "{} of {limit}", ours.backward);
        }
    });
}

/// Twice the time, twice the memory, where a chunk has as few rows as it may.
#[test]
fn memory_of_attention_grows_with_the_time() {
    alone(|| {
        let peak = |time: usize| {
            let leaf = numbers([1, 8, time, 2], 1, &flex()).require_grad();
            let heads = [1.0, 2.0, 3.0].map(|factor| leaf.clone() * factor);
            let [query, key, value] = heads;
            let attend = || Attention::new().forward(query, key, value);
            bytes_of(&leaf, attend, Tensor::sum).backward
        };
        let [short, long] = [2048, 4096].map(peak);
        println!("attention's backward pass: {short} bytes at 2048, {long} at 4096");
        assert!(long <= 2 * short + short / 4, "{long} {short}");
    });
}

/// Scores of a window, of which there are four tensors at once, and not those of all keys. With a
/// softcap they are made in tensors, by the chunk.
#[test]
fn a_window_needs_memory_and_time_for_what_it_sees() {
    alone(|| {
        const TIME: usize = 2048;
        const WINDOW: usize = 128;
        const HEADS: usize = 2;
        let run = |attention: Attention| {
            let leaf = numbers([1, HEADS, TIME, 16], 1, &flex()).require_grad();
            let [query, key, value] = [1.0, 2.0, 3.0].map(|factor| leaf.clone() * factor);
            let start = std::time::Instant::now();
            let attend = || attention.forward(query, key, value);
            let bytes = bytes_of(&leaf, attend, Tensor::sum);
            (bytes, start.elapsed())
        };
        for attention in [Attention::new(), Attention::new().with_softcap(20.0)] {
            let causal = attention.causal();
            let ids: Vec<_> = (0..TIME).map(|at| (at / WINDOW) as i64).collect();
            let ids = Tensor::<1, Int>::from_ints(&ids[..], &flex());
            let (all, time) = run(causal.clone());
            println!("causal: {} bytes, {time:?}", all.backward);
            for (what, part) in [
                ("window", causal.clone().with_window(WINDOW)),
                ("documents", causal.with_documents(ids.unsqueeze())),
            ] {
                let (Bytes { kept, backward }, time) = run(part);
                println!("{what} of {WINDOW}: {backward} bytes, {time:?}");
                // The first and the last position of each document.
                assert!(kept <= 16 * TIME + SMALL, "{kept}");
                // What the gradients and the operands of a product need, and scores.
                let limit = 10 * 4 * TIME * HEADS * 16 + 5 * 4 * HEADS * WINDOW * 2 * WINDOW;
                assert!(backward <= limit, "{backward} of {limit}");
                assert!(backward <= all.backward, "{backward} of {}", all.backward);
            }
        }
    });
}

#[test]
fn linear_makes_its_gradients_alone() {
    alone(|| {
        let weight = numbers(DIMS, 2, &flex()).require_grad();
        let peak = |op: &dyn Fn(Tensor<3>) -> Tensor<3>| {
            let x = numbers([16, DIMS[0] / 16, DIMS[1]], 1, &flex()).require_grad();
            // Not the gradient of a sum, which is one number expanded.
            let loss = |y: Tensor<3>| (y * 2.0).sum();
            bytes_of(&x, || op(x.clone()), loss).backward
        };
        let plain = peak(&|x| burn::tensor::module::linear(x, weight.clone(), None));
        let product = peak(&|x| x.matmul(weight.clone().unsqueeze()));
        let ours = peak(&|x| linear(x, weight.clone(), None));
        println!("backward needs {ours} bytes, Burn's linear {plain}, Burn's matmul {product}");
        // The gradients of the output, the weight and the input, and an operand that is packed.
        assert!(ours <= 4 * INPUT + SMALL, "{ours}");
        assert!(ours < plain / 4, "{ours} {plain}");
    });
}

#[test]
fn dropout_keeps_bits_and_swiglu_its_inputs() {
    alone(|| {
        let module = DropoutConfig::new(0.1).init();
        let (plain, ours) = (bytes(|x| module.forward(x)), bytes(|x| dropout(x, 0.1)));
        print("dropout", &plain, &ours);
        assert!(ours.kept <= INPUT / 24 + SMALL, "{}", ours.kept);
        assert!(plain.kept >= INPUT, "{}", plain.kept);

        let up = numbers(DIMS, 3, &flex()).require_grad();
        let plain_glu = |x| activation::silu(x) * up.clone();
        let (plain, ours) = (bytes(plain_glu), bytes(|x| swiglu(x, up.clone())));
        print("swiglu", &plain, &ours);
        assert!(ours.kept <= SMALL, "{}", ours.kept);
        assert!(plain.kept >= INPUT, "{}", plain.kept);
    });
}

#[test]
fn a_feed_forward_network_keeps_its_hidden_layer_once() {
    // A hidden layer that is large beside the weights, the input and the block that is computed at
    // once: products of few columns are fast.
    const ROWS: usize = 4096;
    const WIDTH: usize = 64;
    const INPUT: usize = 4 * ROWS * WIDTH;
    const HIDDEN: usize = 16 * INPUT;
    const WEIGHTS: usize = 4 * 2 * WIDTH * 16 * WIDTH;
    alone(|| {
        for drop in [0.0, 0.1] {
            let config = PositionWiseFeedForwardConfig::new(WIDTH, 16 * WIDTH);
            let plain = config.with_dropout(drop).init(&flex());
            let lean = plain.clone().lean();
            let bytes = |op: &dyn Fn(Tensor<2>) -> Tensor<2>| bytes_from([ROWS, WIDTH], op);
            let (plain, ours) = (bytes(&|x| plain.forward(x)), bytes(&|x| lean.forward(x)));
            print(&format!("feed-forward network, {drop}"), &plain, &ours);
            let bits = if drop > 0.0 { HIDDEN / 24 } else { 0 };
            assert!(ours.kept <= HIDDEN + bits + SMALL, "{}", ours.kept);
            assert!(plain.kept >= 2 * HIDDEN, "{}", plain.kept);
            // The gradients of the parameters and of the output; of the hidden layer, which is
            // written over that, a block of 2 MiB with its gradient, and its chunks.
            let limit = WEIGHTS + 2 * INPUT + 4 * (2 << 20) + 6 * chunks() + SMALL;
            // Less than a gradient of the hidden layer beside it.
            let limit = limit.min(HIDDEN);
            assert!(ours.backward <= limit, "{} of {limit}", ours.backward);
        }
    });
}
