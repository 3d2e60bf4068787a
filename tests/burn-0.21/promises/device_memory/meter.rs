//! What the meter says, where it can be worked out by hand.

use std::sync::mpsc;
use std::thread;

use burn::tensor::{Tensor, TensorData};

use super::{Device, Metered, memory};

/// 256 x 256 numbers: a multiple of any alignment.
const SIDE: usize = 256;
const BYTES: u64 = (SIDE * SIDE * size_of::<f32>()) as u64;

fn tensor() -> Tensor<Metered, 2> {
    let data = TensorData::new(vec![0.5f32; SIDE * SIDE], [SIDE, SIDE]);
    Tensor::from_data(data, &Device::default())
}

#[test]
fn tensors_count_while_they_live() {
    let memory = memory();
    drop(tensor());
    memory.reset_peak();
    let before = memory.usage();
    let mut tensors: Vec<_> = (0..5).map(|_| tensor()).collect();
    let full = memory.usage();
    assert_eq!(full.in_use, before.in_use + 5 * BYTES);
    assert_eq!(full.allocations, before.allocations + 5);
    assert!(full.reserved >= full.in_use);

    // A clone is the same tensor.
    let clone = tensors[0].clone();
    tensors.truncate(2);
    assert_eq!(memory.usage().in_use, before.in_use + 2 * BYTES);
    tensors.clear();
    assert_eq!(memory.usage().in_use, before.in_use + BYTES);
    drop(clone);
    assert_eq!(memory.usage(), before);
    assert_eq!(
        memory.peak().in_use,
        before.in_use + 5 * BYTES,
        "the peak stays"
    );
    memory.reset_peak();
    assert_eq!(memory.peak().in_use, before.in_use, "until it is forgotten");
}

/// The product is gone before anybody can ask for it.
#[test]
fn a_temporary_is_in_the_peak() {
    let memory = memory();
    let (a, b) = (tensor(), tensor());
    let sum_of_product = || a.clone().matmul(b.clone()).sum().into_scalar();
    // Kernels are tuned once, which takes memory.
    sum_of_product();
    let before = memory.usage();
    memory.reset_peak();
    sum_of_product();
    assert_eq!(memory.usage().in_use, before.in_use, "nothing is left");
    let temporary = memory.peak().in_use - before.in_use;
    // The parts of a sum, and the sum.
    let sums = BYTES / 8;
    assert!(
        (BYTES..=BYTES + sums).contains(&temporary),
        "{temporary} bytes for a product of {BYTES}"
    );
}

/// Every thread has pools of its own.
#[test]
fn threads_add_up() {
    let memory = memory();
    let before = memory.usage();
    memory.reset_peak();
    let (made, wait) = mpsc::channel();
    let (done, go_on) = mpsc::channel::<()>();
    let mine = tensor();
    thread::scope(|scope| {
        let memory = &memory;
        scope.spawn(move || {
            let theirs = tensor();
            let there = memory.usage();
            made.send(there).expect("the test waits");
            go_on.recv().expect("the test says when");
            drop(theirs);
            memory.usage();
        });
        // Gone when this fails, so that the thread does not wait for ever.
        let done = done;
        let there = wait.recv().expect("a reading");
        assert_eq!(there.in_use, before.in_use + 2 * BYTES, "seen from there");
        assert_eq!(
            memory.usage().in_use,
            before.in_use + 2 * BYTES,
            "and from here"
        );
        drop(mine);
        assert_eq!(
            memory.usage().in_use,
            before.in_use + BYTES,
            "theirs is left"
        );
        done.send(()).expect("the thread waits");
    });
    assert_eq!(memory.usage().in_use, before.in_use);
    assert_eq!(memory.peak().in_use, before.in_use + 2 * BYTES);
}

#[test]
fn cleaning_up_gives_back_what_is_reserved() {
    let memory = memory();
    let tensors: Vec<_> = (0..64).map(|_| tensor()).collect();
    let full = memory.usage();
    drop(tensors);
    let empty = memory.usage();
    assert_eq!(empty.in_use, full.in_use - 64 * BYTES);
    assert_eq!(empty.reserved, full.reserved, "kept for the next tensors");
    memory.cleanup();
    let clean = memory.usage();
    assert!(
        clean.reserved + 64 * BYTES <= full.reserved,
        "{clean:?} after {full:?}"
    );
    assert_eq!(clean.in_use, empty.in_use);
}
