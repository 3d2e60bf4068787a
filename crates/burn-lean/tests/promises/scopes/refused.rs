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
    // Its own parameter by another way is none of the module's.
    let clone = block.clone();
    let with_clone = move |_: &Block, x| clone.forward(x);
    assert_panics(|| checkpoint(&block, x(), with_clone), what_to_do);
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
        let is_same = name == "another thread draws, the scope does not";
        let what = "it has computed something else than the first time";
        for is_released in [false, true] {
            let block = seeded(&device, Block::new);
            let x = numbers::<3>([2, 3, 8], 1, &device).require_grad();
            let loss = checkpoint(&block, x, changing(runs)).remove(0).mean();
            let run = || match is_released {
                true => drop(adamw().with_gradient_release().backward(LR, loss, block)),
                false => drop(loss.backward()),
            };
            match is_same {
                true => run(),
                false => assert_panics(run, what),
            }
        }
    }
}

/// What backward runs on another thread gets the same gradients.
#[test]
fn a_scope_that_computes_on_another_thread() {
    let elsewhere = |block: &Block, x: Tensor<3>| {
        std::thread::scope(|threads| threads.spawn(move || block.forward(x)).join().unwrap())
    };
    let make = || seeded(&flex(), Block::new);
    both_ways(BOTH, 3, make, |block, step| {
        checkpoint(block, numbers([1, 2, 8], step, &flex()), elsewhere)
            .square()
            .mean()
    });
}

/// Mapped inside of the closure, a parameter is another leaf, or none: of its clone nothing comes.
#[test]
fn a_module_that_is_frozen_inside_of_the_closure() {
    let device = flex();
    let block = seeded(&device, Block::new);
    let x = || numbers::<3>([2, 3, 8], 1, &device).require_grad();
    let frozen = |block: &Block, x| block.clone().no_grad().forward(x);
    let grads = checkpoint(&block, x(), frozen).sum().backward();
    assert!(block.key.weight.grad(&grads).is_none());
    let input = x();
    let grads = checkpoint(&block, input.clone(), frozen).sum().backward();
    let expected = x();
    let plain = frozen(&block, expected.clone()).sum().backward();
    let of = |x: Tensor<3>, grads| bits_of(x.grad(grads).unwrap());
    assert_eq!(of(input, &grads), of(expected, &plain));
}
