//! Checkpoints are Burn's own: either strategy resumes what the other has saved.

use burn_lean::FirstPass;

use super::harness::{Directory, Mode, Net, Training, User};
use crate::harness::{adamw, assert_bits, flex};

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
    let in_windows = Training {
        accumulation: Some(3),
        ..Training::without_third_use(User::default())
    };
    // With an activation that is used thrice and more, the first pass after a resume has to be
    // asked for exactly.
    let exact = Training {
        first_pass: FirstPass::Exact,
        ..Training::new(adamw)
    };
    let trainings = [
        (
            "each step",
            Training::without_third_use(User::default()),
            &pairs[..],
        ),
        ("windows", in_windows, &pairs[..]),
        ("exact", exact, &pairs[2..3]),
    ];
    for (what, training, pairs) in trainings {
        let whole = Training {
            epochs: 4,
            shuffle: Some(7),
            ..training
        };
        let expected = whole.run(Stock);
        for (first, second) in pairs {
            let what = format!("{what}, {first:?}, then {second:?}");
            let begun = Training {
                epochs: 2,
                saves: true,
                directory: Directory::temporary(),
                first_pass: FirstPass::default(),
                ..whole.clone()
            };
            begun.run(*first);
            let resumed = Training {
                epochs: 4,
                checkpoint: Some(2),
                // What it begins with is not what it goes on with.
                model: Net {
                    is_mixed: whole.model.is_mixed,
                    ..Net::new(&flex())
                },
                first_pass: whole.first_pass,
                ..begun
            };
            let resumed = resumed.run(*second);
            let done = expected.losses.len() - resumed.losses.len();
            assert_eq!(done, expected.losses.len() / 2, "{what}");
            assert_eq!(resumed.losses, expected.losses[done..], "{what}");
            assert_bits(&resumed.last, &expected.last, &what);
        }
    }
}
