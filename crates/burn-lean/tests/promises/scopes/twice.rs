//! Modules that have a parameter twice, or one that gets no gradient.

use super::*;
use crate::small::started;

/// The distance of a student from its teacher, which has the same ids.
fn distance(pair: &(Linear, Linear), is_student_first: bool, again: bool) -> Tensor<1> {
    let x = numbers::<2>([3, 6], 1, &flex());
    forward(pair, x, again, move |(one, other): &(Linear, Linear), x| {
        let (student, teacher) = match is_student_first {
            true => (one, other),
            false => (other, one),
        };
        let of_teacher = match teacher.weight.device().is_autodiff() {
            true => teacher.forward(x.clone()).detach(),
            false => Tensor::from_inner(teacher.forward(x.clone().inner())),
        };
        (student.forward(x) - of_teacher).square().mean()
    })
}

#[test]
fn a_teacher_with_the_ids_of_its_student() {
    let device = flex();
    let start: Linear = seeded(&device, |device| LinearConfig::new(6, 4).init(device));
    let changed = |module: Linear| numbered_from(module, 300);
    let sgd = || SgdConfig::new().init();
    for teacher in [
        changed(start.clone().no_grad()),
        changed(start.clone()).valid(),
    ] {
        for is_student_first in [true, false] {
            let loss = |student: &Linear, again| {
                let (student, teacher) = (student.clone(), teacher.clone());
                let pair = match is_student_first {
                    true => (student, teacher),
                    false => (teacher, student),
                };
                distance(&pair, is_student_first, again)
            };
            let expected = plain_step(start.clone(), &mut sgd(), |student| loss(student, false));
            assert_ne!(bits(&expected), bits(&start));
            let found = plain_step(start.clone(), &mut sgd(), |student| loss(student, true));
            assert_bits(&bits(&found), &bits(&expected), "plain Burn");
            let mut optim = sgd().with_gradient_release();
            let found = release_step(start.clone(), &mut optim, |student| loss(student, true));
            assert_bits(&bits(&found), &bits(&expected), "released");
        }
    }
}

/// As a target network: a constant, also in a scope that has captured it, or has it in its module, and
/// in a scope below the model, which runs again when the model was stepped.
#[test]
fn a_frozen_copy_of_the_model() {
    type Pair = (Small, Small);
    let x = || numbers::<2>([3, 4], 1, &flex());
    let difference = |model: &Small, target: &Small, x: Tensor<2>| {
        model.forward(x.clone()) - target.forward(x.mul_scalar(2.0))
    };
    let kept = move |model: &Small, target: Small| difference(model, &target, x());
    let captured = move |model: &Small, target: Small| {
        checkpoint(model, x(), move |model, x| difference(model, &target, x))
    };
    let nested = move |model: &Small, target: Small| {
        checkpoint(model, x(), move |model, x| {
            let of_target = checkpoint(&target, x.clone().mul_scalar(2.0), Small::forward);
            model.forward(x) - of_target
        })
    };
    let first = move |model: &Small, target: Small| {
        let pair = (model.clone(), target);
        checkpoint(&pair, x(), move |(model, target): &Pair, x| {
            difference(model, target, x)
        })
    };
    let last = move |model: &Small, target: Small| {
        let pair = (target, model.clone());
        checkpoint(&pair, x(), move |(target, model): &Pair, x| {
            difference(model, target, x)
        })
    };
    let inner = move |model: &Small, target: Small| {
        let pair = (model.clone(), target);
        checkpoint(&pair, x(), move |pair: &Pair, x| {
            checkpoint(pair, x, move |(model, target): &Pair, x| {
                difference(model, target, x)
            })
        })
    };
    let below = move |model: &Small, target: Small| {
        model.forward(target.forward(x().require_grad()).tanh())
    };
    let below_in_scopes = move |model: &Small, target: Small| {
        let hidden = checkpoint(&target, x().require_grad(), |target: &Small, x| {
            checkpoint(target, x, Small::forward).tanh()
        });
        model.forward(hidden)
    };
    type Run<'a> = &'a dyn Fn(&Small, Small) -> Tensor<2>;
    let runs: [(&str, Run, Run); 6] = [
        ("captured", &captured, &kept),
        ("in a scope in the scope", &nested, &kept),
        ("after it in the module", &first, &kept),
        ("before it in the module", &last, &kept),
        ("in the module of two scopes", &inner, &kept),
        ("below it", &below_in_scopes, &below),
    ];
    for (what, run, kept) in runs {
        let (model, mut optim) = plain(&[0]);
        let target = model.clone().no_grad();
        let expected = plain_step(model, &mut optim, |model| {
            kept(model, target.clone()).square().mean()
        });
        let (model, mut optim) = started();
        let found = release_step(model, &mut optim, |model| {
            run(model, target.clone()).square().mean()
        });
        assert_bits(&bits(&found), &bits(&expected), what);
        assert_eq!(target.values(), plain(&[0]).0.values(), "{what}");
    }
}

/// A gradient of zeros would let an optimizer decay it.
#[test]
fn a_parameter_of_one_element_that_gets_no_gradient() {
    devices().into_iter().for_each(of_one_element);
}

fn of_one_element(device: Device) {
    let heads: (Linear, Linear) = seeded(&device, |device| {
        (
            LinearConfig::new(6, 6).init(device),
            LinearConfig::new(6, 1).init(device),
        )
    });
    let bias = |head: &Linear| head.bias.clone().unwrap();
    let x = || numbers::<2>([3, 6], 1, &device);
    let body = |(body, _): &(Linear, Linear), x| body.forward(x);
    let grads = checkpoint(&heads, x(), body).sum().backward();
    assert!(heads.0.weight.grad(&grads).is_some());
    assert!(bias(&heads.1).grad(&grads).is_none());

    // Used and leading to no loss; and used again later, whose gradient comes first.
    let both =
        |(body, head): &(Linear, Linear), x: Tensor<2>| (body.forward(x.clone()), head.forward(x));
    let (hidden, _) = checkpoint(&heads, x(), both);
    assert!(bias(&heads.1).grad(&hidden.sum().backward()).is_none());
    let of_bias = |again| {
        let (hidden, scores) = forward(&heads, x(), again, both);
        let scores = scores.sin() + heads.1.forward(hidden).cos();
        let grad = bias(&heads.1).grad(&(scores * 0.3).sum().backward());
        bits_of(grad.unwrap())
    };
    assert_eq!(of_bias(true), of_bias(false));
}

/// AdamW would decay it.
#[test]
fn a_released_parameter_of_one_element_that_gets_no_gradient() {
    let make = |device: &Device| -> (Linear, Linear) {
        let head = LinearConfig::new(6, 1).init(device);
        (LinearConfig::new(6, 6).init(device), head)
    };
    assert_same_recomputed(&flex(), make, |heads, step, again| {
        let both = |(body, head): &(Linear, Linear), x: Tensor<2>| {
            (body.forward(x.clone()), head.forward(x))
        };
        let x = numbers::<2>([3, 6], step, &flex());
        forward(heads, x, again, both).0.square().mean()
    });
}
