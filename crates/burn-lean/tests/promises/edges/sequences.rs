//! Every legal order of calls comes to plain Burn's weights, and every other is refused.

use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use burn_lean::{ReleaseOptimizer, WithGradientRelease};

use crate::harness::{LR, bits};
use crate::small::{Plain, Small, assert_error, panic_of, plain};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Arm,
    Forward,
    Backward,
    Step,
    Disarm,
    Clone,
    Valid,
    DropAll,
}

const CALLS: [Call; 8] = [
    Call::Arm,
    Call::Forward,
    Call::Backward,
    Call::Step,
    Call::Disarm,
    Call::Clone,
    Call::Valid,
    Call::DropAll,
];

/// Both runs, and what is known of the armed one.
struct Both {
    plain: Small,
    plain_optim: ModuleOptimizer,
    model: Option<Small>,
    optim: ReleaseOptimizer,
    losses: Option<(Tensor<1>, Tensor<1>)>,
    grads: Option<(GradientsParams, GradientsParams)>,
    /// Copies of the model, and the weights that plain Burn's copy has.
    copies: Vec<(Small, Vec<Vec<u32>>)>,
    is_armed: bool,
    /// A backward has stepped the parameters.
    is_stepped: bool,
    batch: usize,
}

impl Both {
    fn new(start: &Plain) -> Self {
        Self {
            plain: start.0.clone(),
            plain_optim: start.1.clone(),
            model: Some(start.0.clone()),
            optim: start.1.clone().with_gradient_release(),
            losses: None,
            grads: None,
            copies: Vec::new(),
            is_armed: false,
            is_stepped: false,
            batch: 0,
        }
    }

    fn model(&self) -> &Small {
        self.model.as_ref().unwrap()
    }

    /// Whether the walk makes this call. What arming changes between a forward and its backward,
    /// and passes that share a tape, have [tests of their own](super::calls).
    fn is_possible(&self, call: Call) -> bool {
        match call {
            Call::Backward => self.losses.is_some() && !self.is_stepped,
            Call::Step => self.grads.is_some() || !self.is_stepped,
            Call::Arm => self.losses.is_none() || self.is_armed,
            Call::Disarm => self.losses.is_none() && self.is_armed,
            Call::Clone | Call::Valid => self.copies.len() < 3 && !self.is_stepped,
            Call::DropAll => !self.copies.is_empty() || self.losses.is_some(),
            Call::Forward => true,
        }
    }

    fn make(&mut self, call: Call) {
        match call {
            Call::Arm | Call::Disarm => {
                let model = self.model.take().unwrap();
                let made = match call {
                    Call::Arm => self.optim.try_arm(LR, model),
                    _ => self.optim.try_disarm(model),
                };
                self.model = Some(match made {
                    Ok(model) => {
                        assert!(!self.is_stepped, "{call:?} in the middle of a step");
                        self.is_armed = call == Call::Arm;
                        model
                    }
                    Err(refused) => {
                        assert!(self.is_stepped);
                        assert_error!(refused.error(), Unfinished);
                        refused.into_model()
                    }
                });
            }
            Call::Forward => {
                self.batch += 1;
                self.losses = Some((self.plain.loss(self.batch), self.model().loss(self.batch)));
            }
            Call::Backward => {
                let (plain, loss) = self.losses.take().unwrap();
                let plain = GradientsParams::from_grads(plain.backward(), &self.plain);
                let grads = GradientsParams::from_grads(loss.backward(), self.model());
                assert_eq!(grads.len(), plain.len());
                self.grads = Some((plain, grads));
                self.is_stepped = self.is_armed;
            }
            Call::Step => {
                let (plain, grads) = self.grads.take().unwrap_or_default();
                // A loss of the weights of before this step is of the new ones here.
                self.losses = None;
                self.plain = self.plain_optim.step(LR, self.plain.clone(), plain);
                self.model = Some(self.optim.step(LR, self.model.take().unwrap(), grads));
                self.is_armed = false;
                self.is_stepped = false;
                assert_eq!(bits(self.model()), bits(&self.plain));
            }
            Call::Clone | Call::Valid => {
                let copy = match call {
                    Call::Clone => self.model().clone(),
                    _ => self.model().valid(),
                };
                self.copies.push((copy, self.plain.values()));
            }
            Call::DropAll => {
                self.copies.clear();
                self.losses = None;
            }
        }
        assert_eq!(self.optim.is_armed(), self.is_armed);
        if !self.is_stepped {
            assert_eq!(self.model().values(), self.plain.values());
        }
        for (copy, values) in &self.copies {
            assert_eq!(&copy.values(), values, "a copy");
        }
    }

    /// Ends the step, and takes another one; the copies are ordinary models that can be trained.
    fn finish(mut self) {
        if self.is_stepped {
            self.make(Call::Step);
        }
        self.losses = None;
        self.grads = None;
        for call in [Call::Arm, Call::Forward, Call::Backward, Call::Step] {
            self.make(call);
        }
        for (copy, values) in &self.copies {
            // Saving one may be refused, as two of them may be of different moments.
            assert_eq!(&copy.clone().materialize().values(), values, "a copy");
        }
    }
}

#[test]
fn every_short_sequence() {
    let start = plain(&[0]);
    let mut count = 0;
    // Which calls are possible depends on the calls before, so each sequence is run to see.
    let mut sequences = vec![Vec::new()];
    for length in 0..=4 {
        let mut longer = Vec::new();
        for calls in sequences {
            let walk = panic_of(|| {
                let mut both = Both::new(&start);
                for call in &calls {
                    both.make(*call);
                }
                let possible = CALLS.into_iter().filter(|call| both.is_possible(*call));
                let possible: Vec<Call> = possible.collect();
                both.finish();
                possible
            });
            let next = walk.unwrap_or_else(|text| panic!("in the sequence {calls:?}: {text}"));
            count += usize::from(length > 0);
            longer.extend(next.iter().map(|call| [&calls[..], &[*call]].concat()));
        }
        sequences = longer;
    }
    assert!(count > 500, "{count} sequences");
}

#[test]
fn long_random_sequences() {
    let start = plain(&[0]);
    let mut random = 12345_u64;
    let (mut stepped, mut refused) = (0, 0);
    for _ in 0..120 {
        let mut both = Both::new(&start);
        let mut calls = Vec::new();
        while calls.len() < 40 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let call = CALLS[(random >> 40) as usize % CALLS.len()];
            if !both.is_possible(call) {
                continue;
            }
            calls.push(call);
            stepped += usize::from(call == Call::Step && both.is_stepped);
            refused += usize::from(call == Call::Arm && both.is_stepped);
            let made = panic_of(|| both.make(call));
            assert_eq!(made, Ok(()), "in the sequence {calls:?}");
        }
        both.finish();
    }
    assert!(
        stepped > 20 && refused > 10,
        "{stepped} steps, {refused} refusals"
    );
}
