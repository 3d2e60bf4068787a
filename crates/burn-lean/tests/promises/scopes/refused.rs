//! Functions that a scope cannot run a second time.

use super::*;

#[test]
fn what_would_get_no_gradient_is_refused() {
    let device = flex();
    let (block, other) = (Block::new(&device), Block::new(&device));
    let x = || numbers::<3>([1, 2, 8], 1, &device);
    let what_to_do = "pass it as a part of the input";
    let outside = x().require_grad();
    let with_tensor = move |block: &Block, x: Tensor<3>| block.forward(x + outside.clone());
    assert_panics(|| checkpoint(&block, x(), with_tensor), what_to_do);
    let with_parameter = move |block: &Block, x| other.forward(block.forward(x));
    assert_panics(|| checkpoint(&block, x(), with_parameter), what_to_do);
}

fn drop_some(x: Tensor<3>) -> Tensor<3> {
    DropoutConfig::new(0.2).init().forward(x)
}

/// Gives another result from the second run on.
fn changing<R: Send + Sync + 'static>(
    results: [impl Fn(&Block, Tensor<3>) -> R + Send + Sync + 'static; 2],
) -> impl Fn(&Block, Tensor<3>) -> R + Send + Sync + 'static {
    let runs = AtomicUsize::new(0);
    move |block, x| results[runs.fetch_add(1, Relaxed).min(1)](block, x)
}

#[test]
fn a_second_run_that_differs_is_refused() {
    type Run<R> = fn(&Block, Tensor<3>) -> R;
    let one = |block: &Block, x| vec![block.attend(x)];
    let two = |block: &Block, x: Tensor<3>| vec![block.attend(x.clone()), x];
    let other_weights: Run<_> = |block, x| vec![block.perceive(x)];
    let other_shape: Run<_> = |block, x| vec![block.attend(x).narrow(0, 0, 1)];
    let few: Run<_> = |_, x| vec![x];
    // As the worker of a data loader does.
    let on_another_thread: Run<_> = |block, x| {
        let device = x.device();
        let thread = move || Tensor::<1>::random([1], Distribution::Default, &device);
        std::thread::spawn(thread).join().unwrap();
        vec![drop_some(block.attend(x))]
    };
    let dropout: Run<_> = |block, x| vec![drop_some(block.attend(x))];
    let undisturbed: Run<_> = |block, x| {
        let device = x.device();
        let thread = move || Tensor::<1>::random([1], Distribution::Default, &device);
        std::thread::spawn(thread).join().unwrap();
        vec![block.attend(x)]
    };
    let device = flex();
    let cases: [(&str, [Run<Vec<Tensor<3>>>; 2]); 6] = [
        ("other weights", [one, other_weights]),
        ("another shape", [one, other_shape]),
        ("more results", [one, two]),
        ("the input alone", [one, few]),
        ("another thread draws", [dropout, on_another_thread]),
        (
            "another thread draws, the scope does not",
            [one, undisturbed],
        ),
    ];
    for (name, runs) in cases {
        for is_armed in [false, true] {
            let mut block = seeded(&device, Block::new);
            if is_armed {
                block = adamw().with_gradient_release().arm(LR, block);
            }
            let x = numbers::<3>([2, 3, 8], 1, &device).require_grad();
            let loss = checkpoint(&block, x, changing(runs)).remove(0).mean();
            if name == "another thread draws, the scope does not" {
                assert!(block.key.weight.grad(&loss.backward()).is_some() || is_armed);
            } else {
                let what = "it has computed something else than the first time";
                assert_panics(|| loss.backward(), what);
            }
        }
    }
}

/// They would be constants there.
#[test]
fn armed_parameters_read_on_another_thread_are_refused() {
    let elsewhere = |block: &Block, x: Tensor<3>| {
        std::thread::scope(|threads| {
            let thread = threads.spawn(move || block.forward(x));
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    };
    let device = flex();
    let x = numbers::<3>([1, 2, 8], 1, &device);
    let mut optim = adamw().with_gradient_release();
    let block = optim.arm(LR, seeded(&device, Block::new));
    let what_to_do = "norm.gamma is read on another thread";
    assert_panics(|| checkpoint(&block, x.clone(), elsewhere), what_to_do);
    // Nothing has changed: a scope that computes on its own thread is the way out.
    let kept = |block: &Block| block.forward(x.clone()).mean();
    let expected = plain_step(seeded(&device, Block::new), &mut adamw(), kept);
    let loss = checkpoint(&block, x.clone(), Block::forward).mean();
    let grads = GradientsParams::from_grads(loss.backward(), &block);
    let block = optim.step(LR, block, grads);
    assert_bits(&bits(&block), &bits(&expected), "after the step");
}

/// A thread of rayon's that waits in a scope takes up another task, of another model.
#[test]
fn another_model_on_the_thread_of_a_scope() {
    let device = flex();
    let (block, other) = (Block::new(&device), Block::new(&device));
    let optim = std::sync::Mutex::new(adamw().with_gradient_release());
    let train = move |block: &Block, x| {
        let mut optim = optim.lock().unwrap();
        let refused = optim.try_arm(LR, other.clone()).unwrap_err();
        assert!(
            matches!(refused.error(), ReleaseError::InScope),
            "{}",
            refused.error()
        );
        let grads = GradientsParams::new();
        let refused = optim.try_step(LR, other.clone(), grads).unwrap_err();
        assert!(
            matches!(refused.error(), ReleaseError::InScope),
            "{}",
            refused.error()
        );
        block.forward(x)
    };
    let x = numbers::<3>([1, 2, 8], 1, &device);
    checkpoint(&block, x, train).sum().backward();
}

#[test]
fn freezing_an_armed_module_inside_of_the_closure_is_refused() {
    let device = flex();
    let block = adamw()
        .with_gradient_release()
        .arm(LR, seeded(&device, Block::new));
    let x = numbers::<3>([2, 3, 8], 1, &device).require_grad();
    let frozen = |block: &Block, x| block.clone().no_grad().forward(x);
    let what = "was mapped inside of the closure of a scope (by `no_grad` or a mapper)";
    assert_panics(|| checkpoint(&block, x, frozen), what);
}
