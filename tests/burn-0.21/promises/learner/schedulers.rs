//! The rate of an iteration is the rate its weights are stepped with, whatever the scheduler.

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::constant::ConstantLr;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::lr_scheduler::step::StepLrSchedulerConfig;
use burn_gradient_release::ModuleLrScheduler;

use crate::harness::learner::*;
use crate::harness::prelude::*;

/// The same weights at every step, the same rates in the logs, and those rates applied. Then one
/// epoch from the other's checkpoint, as far as the scheduler's own record goes.
fn same<LR: LrScheduler + 'static>(name: &str, scheduler: &LR) {
    let task = Task::new(Net::Chain);
    let stock = train_with_rates::<Stock, _>(&task, &Training::saving(), scheduler.clone());
    let release = train_with_rates::<Released, _>(&task, &Training::saving(), scheduler.clone());
    release.assert_same(&stock, name);

    let mut rates = scheduler.clone();
    for epoch in 1..=3 {
        let rates: Vec<_> = (0..7).map(|_| format!("{},1", rates.step())).collect();
        for (run, metric) in [
            (&stock, "Learning Rate"),
            (&release, "Learning Rate"),
            (&release, "Applied Learning Rate"),
        ] {
            let logged = run.directory.logged(epoch, metric);
            assert_eq!(logged, rates, "{name}, epoch {epoch}: {metric}");
        }
    }

    let task = task.with_other_weights();
    let from = |directory| Training {
        directory,
        ..Training::saving().only_epoch(3)
    };
    let by_stock = train_with_rates::<Stock, _>(&task, &from(release.directory), scheduler.clone());
    let by_release =
        train_with_rates::<Released, _>(&task, &from(stock.directory.clone()), scheduler.clone());
    for resumed in [by_stock, by_release] {
        assert_eq!(resumed.found.len(), 7, "{name}");
        assert_eq!(resumed.difference(&stock, 14), None, "{name}, resumed");
    }
}

/// (Every kind, and its record: [`module_lr_scheduler`](crate::groups).)
#[test]
fn burns_schedulers_and_one_with_groups() {
    let composed = ComposedLrSchedulerConfig::new()
        .linear(LinearLrSchedulerConfig::new(0.01, 1.0, 6))
        .noam(
            NoamLrSchedulerConfig::new(1.0)
                .with_warmup_steps(6)
                .with_model_size(8),
        )
        .cosine(CosineAnnealingLrSchedulerConfig::new(1.0, 9).with_min_lr(0.1));
    same("a product", &composed.init().expect("in range"));
    // The Learner sees the rate of the base; the record has the groups too.
    let step = StepLrSchedulerConfig::new(0.03, 4).with_gamma(0.5);
    let grouped = ModuleLrScheduler::new(step.init().expect("in range"))
        .with_group(ParamGroup::from_path("bias"), ConstantLr::new(0.1));
    same("with groups", &grouped);
}
