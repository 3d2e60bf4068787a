//! What a user's model may be and do: its parameters, `TrainStep::step` and `TrainStep::optimize`.
//! It works, or it is refused in one sentence.

use super::assert_refused;
use crate::harness::learner::*;
use crate::harness::prelude::*;

/// Fails unless what `Released` shows at each step ends with this.
#[track_caller]
fn assert_shows(run: &Run, expected: &str, context: &str) {
    let shown = run.renderer.train("Released");
    assert!(!shown.is_empty());
    for shown in shown.iter().filter(|shown| shown.count > 0) {
        assert!(shown.text.ends_with(expected), "{context}: {}", shown.text);
    }
}

#[test]
fn any_parameters() {
    for (net, parameters, is_trained) in [
        (Net::Tied, 6, 6),
        (Net::Frozen, 6, 4),
        (Net::Norm, 8, 8),
        (Net::Lazy, 3, 3),
        // Neither a step nor a state where there is no gradient.
        (Net::Turns, 8, 4),
    ] {
        let task = Task::new(net);
        let [_, run] = same(&task, Training::new, format!("{net:?}"));
        let released = format!("({is_trained} of {is_trained} parameters)");
        assert_shows(&run, &released, &format!("{net:?}"));
        let statistics = if net == Net::Norm { 2 } else { 0 };
        assert_eq!(
            run.last.len(),
            parameters + statistics,
            "{net:?}: what is compared"
        );
        if net == Net::Frozen {
            let before = Weights::of(&task.model::<Plain>().layers[1]);
            assert_eq!(before.distance_within(&run.last, 2), 0.0, "as it was");
        }
    }
}

/// Alone, because the numbers are drawn from one source per process.
#[test]
fn the_same_random_numbers() {
    alone(|| {
        for accumulation in [None, Some(3)] {
            let training = || Training::new().accumulating(accumulation);
            let stock = train::<Stock>(&Task::new(Net::Random), &training());
            let release = train::<Released>(&Task::new(Net::Random), &training());
            stock.assert_trained();
            assert_eq!(release.found.len(), stock.found.len());
            // Each model has ids of its own.
            let all = |run: Run| run.found.into_iter().chain([run.last]);
            for (step, (found, expected)) in all(release).zip(all(stock)).enumerate() {
                assert_eq!(found.distance(&expected), 0.0, "before step {step}");
            }
        }
    });
}

#[test]
fn training_steps_that_work() {
    for (step, released) in [
        (Step::Book, "(6 of 6 parameters)"),
        (Step::Sum, "parameters)"),
        // Each layer is at the bottom of its own tape.
        (Step::Disjoint, "parameters)"),
        (Step::EverySecond, "parameters)"),
        (Step::TwoForwards, "parameters)"),
        (Step::Copy, "parameters)"),
        (Step::GradsOfCopy, "(6 of 6 parameters)"),
        // The fork is a model of its own: its gradients are ordinary ones, and so is the step.
        (Step::Fork, "(0 of 6 parameters, 6 not armed)"),
        (Step::Valid, "(6 of 6 parameters)"),
        (Step::Thread, "(6 of 6 parameters)"),
    ] {
        let task = Task::new(step);
        let [_, run] = same(&task, Training::new, format!("{step:?}"));
        assert_shows(&run, released, &format!("{step:?}"));
        let training = || Training::new().accumulating(3);
        same(&task, training, format!("{step:?}, accumulating"));
    }
}

/// Stock takes all of these without a word, and trains something else than is written, or than
/// release would.
#[test]
fn models_that_are_refused() {
    let unfinished = [
        "6 of 6 armed parameters have been stepped inside backward",
        "call `step` with the model and the gradients first",
    ];
    let last = 3 * Training::new().batches - 1;
    for (task, said) in [
        (
            Task::new(Step::Twice),
            [
                "was stepped inside an earlier backward of this optimizer step",
                "run one backward per step on the sum of the losses",
            ],
        ),
        (
            Task::new(Step::ThrowAway),
            [
                "its gradient was never asked for",
                "`GradientsParams::from_grads`",
            ],
        ),
        (
            Task::new(Step::Partly),
            [
                "its gradient was never asked for",
                "arm only what is to be stepped",
            ],
        ),
        (
            Task::new(Optimize::ClampBefore),
            [
                "the model given is not the one that was armed",
                "pass the model that `arm` returned",
            ],
        ),
        (
            Task::new(Optimize::HalfRate),
            [
                "armed with the learning rate 0.05",
                "but `step` was given 0.025",
            ],
        ),
        // In the iteration that leaves it out, the very last one included.
        (Task::new(Optimize::Skip(0)), unfinished),
        (Task::new(Optimize::Skip(4)), unfinished),
        (Task::new(Optimize::Skip(last)), unfinished),
        // A copy that is kept, as slow weights are, would have other weights than stock's.
        (
            Task::new(Optimize::KeepCopy),
            [
                "taken after backward had stepped it",
                "take a copy that is to be kept before backward",
            ],
        ),
    ] {
        let stock = train::<Stock>(&task, &Training::new());
        assert!(stock.last.finite(), "stock takes it");
        assert_refused(&said, || train::<Released>(&task, &Training::unlogged()));
    }
}

#[test]
fn weights_clamped_after_the_step() {
    let unclamped = train::<Stock>(&Task::new(Optimize::Noted), &Training::new());
    assert!(
        unclamped.last.largest() > CLAMPED_TO,
        "there is something to clamp"
    );
    let task = Task::new(Optimize::ClampAfter);
    for accumulation in [None, Some(2)] {
        let training = || Training::new().accumulating(accumulation);
        let [stock, release] = same(&task, training, "clamped");
        let calls = 3 * (training().batches / accumulation.unwrap_or(1));
        let given = [stock.given.len(), release.given.len()];
        assert_eq!(given, [calls; 2], "once per optimizer step");
        assert!(stock.last.largest() <= CLAMPED_TO);
    }
}

/// What is not refused: the model that `optimize` gets is the one that backward has stepped.
#[test]
fn the_weights_before_the_step_are_the_stepped_ones() {
    let task = Task::new(Optimize::Noted);
    let [stock, release] = same(&task, Training::new, "the run");
    assert_eq!(release.given.len(), stock.given.len());
    for (step, (of_stock, of_release)) in stock.given.iter().zip(&release.given).enumerate() {
        let after = stock.found.get(step + 1).unwrap_or(&stock.last);
        assert!(of_stock.same(&stock.found[step]));
        assert!(of_release.same(after));
    }
}
