//! Groups inside the `Learner`, whose rates come from the scheduler that it steps and saves; and
//! clipping by the global norm, for which it runs two passes.

use std::sync::{Arc, Mutex};

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::linear::{LinearLrScheduler, LinearLrSchedulerConfig};
use burn::train::Learner;
use burn_gradient_release::ModuleLrScheduler;

use super::assert_refused;
use crate::clipping::by_hand::global_norm;
use crate::groups::parts::part;
use crate::harness::learner::*;
use crate::harness::prelude::*;

type Model = RegressionModel<Plain>;

fn own() -> LinearLrScheduler {
    let config = LinearLrSchedulerConfig::new(0.03, 0.002, 17);
    config.init().expect("in range")
}

fn undecayed() -> Hooked {
    Hooked::new()
}

fn decayed() -> Hooked {
    let decay = Some(WeightDecayConfig::new(0.4));
    Hooked::with_config(&AdamConfig::new().with_weight_decay(decay))
}

/// Burn's Learner, with an optimizer for each part: biases without decay at half the rate, and the
/// first layer at rates of its own.
fn by_part(task: &Task, training: &Training) -> Run {
    let others: Mutex<(Adaptor<Plain>, Adaptor<Plain>, _)> =
        Mutex::new((decayed().make(), undecayed().make(), own()));
    let step = move |rest: &mut Adaptor<Plain>, lr: f64, mut model: Model, mut grads| {
        let mut others = others.lock().expect("not poisoned");
        let (first, biases, rates) = &mut *others;
        let of_first = part(&model, &mut grads, &["layers.0.w"]);
        let of_biases = part(&model, &mut grads, &["bias"]);
        model = first.step(rates.step(), model, of_first);
        model = biases.step(lr * 0.5, model, of_biases);
        rest.step(lr, model, grads)
    };
    let optim = OptimizerByHand::new(&decayed(), Arc::new(step));
    let learner = Learner::new(task.model::<Plain>(), optim, rates());
    launch(learner, ByHand::strategy(training), training)
}

/// The same with groups, whose rates are those of the Learner's scheduler, if it `is_linked`.
fn grouped(task: &Task, training: &Training, is_linked: bool) -> Run {
    let scheduler = || {
        let first = ParamGroup::from_path("layers.0.weight");
        ModuleLrScheduler::new(rates()).with_group(first, own())
    };
    let (learners, another) = (scheduler(), scheduler());
    let linked = if is_linked { &learners } else { &another };
    let biases = GroupOptions::new()
        .with_optimizer(&undecayed().make::<Release, RegressionModel<Release>>());
    let optim = Released::optim(training)
        .with_learning_rates(linked.rates())
        .with_group(
            ParamGroup::from_predicate("bias"),
            biases.with_lr_factor(0.5),
        );
    let learner = Learner::new(task.model::<Release>(), optim, learners);
    launch(learner, Released::strategy(training), training)
}

fn decaying(training: Training) -> Training {
    Training {
        optim: decayed(),
        ..training
    }
}

#[test]
fn groups_have_the_weights_of_an_optimizer_for_each_part() {
    let task = Task::new(Net::Chain);
    let expected = by_part(&task, &Training::new());
    let stock = train::<Stock>(&task, &decaying(Training::new()));
    assert!(
        !stock.last.same(&expected.last),
        "the groups differ from the rest"
    );

    let grouped = |task: &Task, training: &Training| grouped(task, training, true);
    grouped(&task, &decaying(Training::new())).assert_same(&expected, "groups");
    let training = decaying(Training::saving());
    resumed(&task, &training, &[&grouped, &grouped, &grouped], &expected);
}

/// An optimizer that reads the rates of a scheduler that nobody steps.
#[test]
fn rates_of_another_scheduler_are_refused() {
    assert_refused(&["gave nothing yet"], || {
        grouped(&Task::new(Net::Chain), &Training::unlogged(), false)
    });
    // Not one that nobody reads, either.
    assert_refused(&["with_learning_rates(scheduler.rates())"], || {
        let training = Training::unlogged();
        let learner = Learner::new(
            Task::new(Net::Chain).model::<Release>(),
            Released::optim(&training),
            ModuleLrScheduler::new(rates()),
        );
        launch(learner, Released::strategy(&training), &training)
    });
}

const MAX_NORM: f64 = 0.15;

fn clipping() -> Training {
    Training {
        max_norm: Some(MAX_NORM),
        ..Training::saving()
    }
}

/// The weights that each second pass found: the first one finds the same.
fn second_passes(mut run: Run) -> Run {
    let found = std::mem::take(&mut run.found);
    for passes in found.chunks(2) {
        assert!(passes[0].same(&passes[1]), "a first pass changes nothing");
        run.found.push(passes[1].clone());
    }
    run
}

/// The running means of batch norm are those of one pass.
#[test]
fn clips_as_plain_burn_does_by_hand() {
    for net in [Net::Chain, Net::Tied, Net::Norm] {
        let task = Task::new(net);
        let expected = train::<ByHand>(&task, &clipping());
        let unclipped = train::<Released>(&task, &Training::new());
        assert!(
            !unclipped.last.same(&expected.last),
            "{net:?}: nothing was clipped"
        );

        let run = train::<Released>(&task, &clipping());
        assert_eq!(run.found.len(), 2 * expected.found.len());
        if net == Net::Norm {
            // A first pass has moved its running means, until they are put back.
            assert!(
                run.last.same(&expected.last),
                "weights or running means differ"
            );
            continue;
        }
        second_passes(run).assert_same(&expected, format!("{net:?}"));

        let two_passes =
            |task: &Task, training: &Training| second_passes(train::<Released>(task, training));
        let by_hand = train::<ByHand>;
        resumed(
            &task,
            &clipping(),
            &[&by_hand, &two_passes, &by_hand],
            &expected,
        );
    }
}

#[test]
fn clips_the_sums_of_micro_batches() {
    let task = Task::new(Net::Chain);
    let training = || clipping().accumulating(3);
    let expected = train::<ByHand>(&task, &training());
    expected.assert_trained();
    let run = train::<Released>(&task, &training());
    assert!(run.last.same(&expected.last), "weights differ");
}

#[test]
fn a_strategy_of_one_pass_refuses_to_clip() {
    let task = Task::new(Net::Chain);
    assert_refused(&["with_two_passes"], || {
        let learner = Learner::new(
            task.model::<Release>(),
            Released::optim(&clipping()),
            rates(),
        );
        let training = Training::unlogged();
        launch(learner, Released::strategy(&training), &training)
    });
}

#[test]
fn the_norm_is_a_metric() {
    let task = Task::new(Net::Chain);
    let run = train::<Released>(&task, &clipping());
    let shown = run.renderer.train("Gradient Norm");
    assert_eq!(shown.len(), 21);
    // The first two items make the first batch.
    let model = task.model::<Plain>();
    let mut grads = gradients(&model, model.loss(Size::Small, 102));
    let norm = global_norm::<Plain, _>(&model, &mut grads);
    assert_eq!(shown[0].value, norm);
    assert!(norm > MAX_NORM);
    assert!(shown[0].text.contains("clipped by"), "{}", shown[0].text);
}

#[test]
fn passes_that_differ_are_refused() {
    let training = Training {
        metrics_in_memory: true,
        ..clipping()
    };
    let said = [
        "gave different losses",
        "draw random numbers with Burn's tensors",
    ];
    assert_refused(&said, || {
        train::<Released>(&Task::new(Net::Drifting), &training)
    });
}
