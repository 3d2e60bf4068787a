//! Checkpoints are Burn's own: either strategy resumes what the other has saved.

use std::fs;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn_lean::FirstPass;
use burn_lean::train::StepMonitor;

use super::harness::{Directory, Mode, Net, Training};
use crate::harness::{Bits, adamw, bits, flex, momentum};

/// The weights in a checkpoint.
fn saved(directory: &Directory, epoch: usize) -> Bits {
    let file = directory.checkpoint(&format!("model-{epoch}.bpk"));
    bits(&Net::new(&flex()).load_record(ModuleRecord::load(file).unwrap()))
}

/// The files of every epoch, and what a stock training makes of them.
#[test]
fn what_is_saved_is_what_stock_saves() {
    for optim in [adamw, momentum] {
        for accumulation in [None, Some(2)] {
            let training = |model: &Net| Training {
                model: model.clone(),
                saves: true,
                accumulation,
                ..Training::new(optim)
            };
            let model = Net::without_third_use(&flex());
            let (stock, released) = (training(&model), training(&model));
            stock.run(Mode::Stock);
            released.run(Mode::Released);
            let files = stock.directory.checkpoints();
            assert_eq!(files.len(), 3 * stock.epochs);
            assert_eq!(released.directory.checkpoints(), files);
            for epoch in 1..=stock.epochs {
                let expected = saved(&stock.directory, epoch);
                assert_eq!(saved(&released.directory, epoch), expected);
                // The model's file has new ids of running statistics, the optimizer's another
                // order.
                let [expected, found] = [&stock, &released].map(|run| {
                    let file = |part| run.directory.checkpoint(&format!("{part}-{epoch}.bpk"));
                    let states = OptimizerRecord::load(file("optim")).unwrap().len();
                    (fs::read(file("scheduler")).unwrap(), states)
                });
                assert_eq!(found, expected);
            }
            let file = released.directory.checkpoint("optim-3.bpk");
            let states = OptimizerRecord::load(file).unwrap();
            assert!(!states.is_empty());
            let file = released.directory.checkpoint("scheduler-3.bpk");
            assert!(!LrSchedulerRecord::load(file).unwrap().is_empty());
        }
    }
}

/// Saved by one, resumed by the other, and on from there to the weights of the run in one piece.
#[test]
fn either_resumes_the_other() {
    use Mode::{Released, Stock, StockWithOurs};
    let pairs = [
        (Stock, Released),
        (Released, Stock),
        (Released, Released),
        (StockWithOurs, Released),
        (Released, StockWithOurs),
    ];
    for (first, second) in pairs {
        for accumulation in [None, Some(3)] {
            let whole = Training {
                epochs: 4,
                shuffle: Some(7),
                accumulation,
                model: Net::without_third_use(&flex()),
                ..Training::new(adamw)
            };
            let expected = whole.run(Stock);
            let begun = Training {
                epochs: 2,
                saves: true,
                directory: Directory::temporary(),
                ..whole.clone()
            };
            begun.run(first);
            let resumed = Training {
                epochs: 4,
                checkpoint: Some(2),
                // What it begins with is not what it goes on with.
                model: Net::without_third_use(&flex()),
                monitor: StepMonitor::new(),
                ..begun
            };
            let resumed = resumed.run(second);
            let done = expected.losses.len() - resumed.losses.len();
            assert_eq!(done, expected.losses.len() / 2);
            assert_eq!(
                resumed.losses,
                expected.losses[done..],
                "{first:?}, {second:?}"
            );
            assert_eq!(resumed.last, expected.last, "{first:?}, {second:?}");
        }
    }
}

/// With an activation that is used thrice and more, the first pass after a resume has to be asked
/// for exactly.
#[test]
fn an_exact_first_pass_after_a_resume() {
    let whole = Training {
        epochs: 4,
        ..Training::new(adamw)
    };
    let expected = whole.run(Mode::Stock);
    let begun = Training {
        epochs: 2,
        saves: true,
        directory: Directory::temporary(),
        ..whole
    };
    begun.run(Mode::Released);
    let resumed = Training {
        epochs: 4,
        checkpoint: Some(2),
        first_pass: FirstPass::Exact,
        ..begun
    };
    assert_eq!(resumed.run(Mode::Released).last, expected.last);
}
