//! A frozen copy with the ids of what is trained, as the teacher of a student.

use super::{P, R, RATE, adam, start};
use crate::harness::models::CnnModel;
use crate::harness::prelude::*;

/// The student and its teacher, in either order.
#[derive(Module, Debug)]
struct Pair<B: Backend> {
    first: MlpModel<B>,
    second: MlpModel<B>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Student {
    First,
    Second,
}

impl Student {
    fn pair<B: AutodiffBackend>(self, student: MlpModel<B>) -> Pair<B> {
        let teacher = student.clone().no_grad();
        let (first, second) = match self {
            Self::First => (student, teacher),
            Self::Second => (teacher, student),
        };
        Pair { first, second }
    }

    /// The student, and the teacher.
    fn split<B: Backend>(self, pair: &Pair<B>) -> [&MlpModel<B>; 2] {
        match self {
            Self::First => [&pair.first, &pair.second],
            Self::Second => [&pair.second, &pair.first],
        }
    }

    fn path_of_teacher(self) -> &'static str {
        match self {
            Self::First => "second.",
            Self::Second => "first.",
        }
    }

    fn loss<B: AutodiffBackend>(self, pair: &Pair<B>, step: u64) -> Tensor<B, 1> {
        let [student, teacher] = self.split(pair);
        let of = |model, step| super::loss::<B>(model, step);
        of(student, step) * of(teacher, step + 1)
    }
}

const STEPS: u64 = 3;

/// Plain Burn's student. Of two parameters with one id, Burn steps the first.
fn expected(start: &Start) -> Weights {
    let order = Student::First;
    let mut pair = order.pair(start.model::<Mlp, P>());
    let mut optim = AdamConfig::new().init();
    for step in 0..STEPS {
        let loss = order.loss(&pair, step);
        pair = ordinary_step(RATE, pair, &mut optim, loss);
    }
    Weights::of::<P, _>(&pair.first)
}

/// The settings of a group are not those of another parameter with the same id, and neither is its
/// step.
#[test]
fn the_student_alone_is_stepped() {
    let start = start::<Mlp>();
    let expected = expected(&start);
    for order in [Student::First, Student::Second] {
        for is_grouped in [false, true] {
            let context = format!("student {order:?}, grouped {is_grouped}");
            let mut pair = order.pair(start.model::<Mlp, R>());
            let before = Weights::of::<R, _>(order.split(&pair)[1]);
            let mut optim = adam::<Pair<R>>();
            if is_grouped {
                let teacher = ParamGroup::from_predicate(order.path_of_teacher());
                optim = optim.with_group(teacher, GroupOptions::new().frozen());
            }
            for step in 0..STEPS {
                let loss = |pair: &_| order.loss(pair, step);
                pair = armed_step(RATE, pair, &mut optim, loss);
                let report = optim.last_step().expect("a step");
                assert_all_released(&report, super::PARAMETERS);
            }
            let [student, teacher] = order.split(&pair);
            Weights::of::<R, _>(student).assert_same(&expected, &context);
            Weights::of::<R, _>(teacher).assert_same(&before, &context);
        }
    }
}

/// A norm counts each gradient once.
#[test]
fn a_gradient_is_in_the_norm_once() {
    let start = start::<Mlp>();
    let norms = [Student::First, Student::Second].map(|order| {
        let optim = adam::<Pair<R>>();
        let mut optim = optim.with_norm_clipping(NormClipping::GlobalNorm { max_norm: 1.0 });
        let pair = order.pair(start.model::<Mlp, R>());
        optim.two_passes(RATE, pair, |pair| order.loss(pair, 0));
        optim.last_step().expect("a step").grad_norm()
    });
    let mut alone = AdamConfig::new()
        .init()
        .with_gradient_release()
        .with_grad_norm();
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
        let expected = Weights::of::<R, _>(&alone);
        Weights::of::<R, _>(&both.student).assert_same(&expected, step);
    }
}
