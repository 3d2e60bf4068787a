//! A frozen copy with the ids of what is trained, as the teacher of a student.

use super::{P, R, RATE, adam, start};
use crate::harness::models::CnnModel;
use crate::harness::prelude::*;

type Pair<B> = [MlpModel<B>; 2];

/// The student at this place, and its teacher at the other.
fn pair<B: AutodiffBackend>(model: MlpModel<B>, student: usize) -> Pair<B> {
    let teacher = model.clone().no_grad();
    match student {
        0 => [model, teacher],
        _ => [teacher, model],
    }
}

fn loss<B: AutodiffBackend>(pair: &Pair<B>, student: usize, step: u64) -> Tensor<B, 1> {
    super::loss(&pair[student], step) * super::loss(&pair[1 - student], step + 1)
}

const STEPS: u64 = 3;

/// The settings of a group are not those of another parameter with the same id, and neither is its
/// step.
#[test]
fn the_student_alone_is_stepped() {
    let start = start::<Mlp>();
    // Of two parameters with one id, Burn steps the first.
    let mut plain = pair(start.model::<Mlp, P>(), 0);
    let mut optim = AdamConfig::new().init();
    for step in 0..STEPS {
        let loss = loss(&plain, 0, step);
        plain = ordinary_step(RATE, plain, &mut optim, loss);
    }
    let expected = Weights::of(&plain[0]);
    for (student, is_grouped) in [(0, false), (0, true), (1, false), (1, true)] {
        let teacher = 1 - student;
        let context = format!("student {student}, grouped {is_grouped}");
        let mut pair = pair(start.model::<Mlp, R>(), student);
        let before = Weights::of(&pair[teacher]);
        let mut optim = adam::<Pair<R>>();
        if is_grouped {
            let of_teacher = ParamGroup::from_predicate(format!("{teacher}.layers"));
            optim = optim.with_group(of_teacher, GroupOptions::new().frozen());
        }
        for step in 0..STEPS {
            pair = armed_step(RATE, pair, &mut optim, |pair| loss(pair, student, step));
            let report = optim.last_step().expect("a step");
            assert_all_released(&report, super::PARAMETERS);
        }
        Weights::of(&pair[student]).assert_same(&expected, &context);
        Weights::of(&pair[teacher]).assert_same(&before, &context);
    }
}

/// A norm counts each gradient once.
#[test]
fn a_gradient_is_in_the_norm_once() {
    let start = start::<Mlp>();
    let norms = [0, 1].map(|student| {
        let optim = adam::<Pair<R>>();
        let mut optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
        let pair = pair(start.model::<Mlp, R>(), student);
        optim.two_passes(RATE, pair, |pair| loss(pair, student, 0));
        optim.last_step().expect("a step").grad_norm()
    });
    let mut alone = adam::<MlpModel<R>>().with_grad_norm();
    let teacher = start.model::<Mlp, R>().no_grad();
    let loss = |student: &_| super::loss(student, 0) * super::loss(&teacher, 1);
    armed_step(RATE, start.model::<Mlp, R>(), &mut alone, loss);
    let expected = alone.last_step().expect("a step").grad_norm();
    assert!(expected.is_some_and(|norm| norm > 0.0));
    assert_eq!(norms, [expected; 2]);
}

/// A forward pass moves the running means of batch norm. Between two passes, each is put back.
#[test]
fn running_means_are_not_those_of_the_copy() {
    #[derive(Module, Debug)]
    struct Both<B: Backend> {
        student: CnnModel<B>,
        teacher: CnnModel<B>,
    }

    fn clipping<M: AutodiffModule<R>>() -> ReleaseOptimizer<Adam, M, R> {
        adam::<M>().with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1e-3 })
    }

    let start = start::<Cnn>();
    let mut alone = start.model::<Cnn, R>();
    let mut optim_alone = clipping();
    let mut both = Both {
        student: start.model::<Cnn, R>(),
        teacher: start.model::<Cnn, R>().no_grad(),
    };
    let mut optim = clipping();
    for step in 0..3 {
        let loss = |model: &_| Cnn::loss::<R>(model, Size::Small, step);
        (alone, _) = optim_alone.two_passes(RATE, alone, loss);
        (both, _) = optim.two_passes(RATE, both, |both| loss(&both.student));
        let expected = Weights::of(&alone);
        Weights::of(&both.student).assert_same(&expected, step);
    }
}
