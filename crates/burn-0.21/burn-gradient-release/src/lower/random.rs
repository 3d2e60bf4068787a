//! Random tensors that are drawn once and used twice.
//!
//! Two backward passes need two forward passes with the same random numbers, such as the masks of
//! dropout. The random tensors of the first are kept for the second, so that the generator of the
//! backend goes on as after one forward pass. The losses are kept among them, to compare them.

use std::{any::Any, cell::RefCell, collections::VecDeque};

use burn::tensor::{
    DType, Distribution, Shape, TensorData,
    backend::Backend,
    ops::{FloatTensor, IntTensor},
};

use crate::{error::ReleaseError, tensor::mask::Mask, util::lend::lend};

thread_local! {
    static LOG: RefCell<Option<Log>> = const { RefCell::new(None) };
}

/// The events of one pass, in their order.
#[derive(Default)]
pub(crate) struct RandomLog(VecDeque<Event>);

enum Event {
    Draw(Drawn),
    /// Backward was called on this loss.
    Backward(TensorData),
}

enum Log {
    Recording(RandomLog),
    Replaying(RandomLog),
}

struct Drawn {
    shape: Shape,
    distribution: Distribution,
    dtype: DType,
    /// A tensor of some backend, or a mask.
    value: Box<dyn Any>,
}

impl RandomLog {
    /// Runs `work`, and keeps the random tensors that it draws.
    pub(crate) fn record<R>(work: impl FnOnce() -> R) -> (R, Self) {
        let mut result = None;
        let log = lend(&LOG, Log::Recording(Self::default()), || {
            result = Some(work());
        });
        match (result, log) {
            (Some(result), Some(Log::Recording(log))) => (result, log),
            _ => unreachable!("`work` has run, and only this module has the log"),
        }
    }

    /// Runs `work`, which draws the kept tensors again. Returns whether it has drawn all of them.
    ///
    /// # Panics
    ///
    /// If `work` draws something else.
    pub(crate) fn replay<R>(self, work: impl FnOnce() -> R) -> (R, bool) {
        let mut result = None;
        let log = lend(&LOG, Log::Replaying(self), || result = Some(work()));
        match (result, log) {
            (Some(result), Some(Log::Replaying(log))) => {
                let is_draw = |event: &Event| matches!(event, Event::Draw(_));
                (result, !log.0.iter().any(is_draw))
            }
            _ => unreachable!("`work` has run, and only this module has the log"),
        }
    }

    /// Compares a loss that backward is called on with that of the first pass, before anything is
    /// stepped with its gradients.
    ///
    /// # Panics
    ///
    /// If they differ, or random tensors that the first pass drew before it were not drawn. The
    /// caller of backward may be a `TrainStep`, which cannot return an error.
    pub(crate) fn check_loss(loss: impl FnOnce() -> TensorData) {
        let is_wanted = LOG.with_borrow(Option::is_some);
        if !is_wanted {
            return;
        }
        // Reading it may run operations, which ask for the log.
        let loss = loss();
        let is_same = LOG.with_borrow_mut(|log| match log {
            None => true,
            Some(Log::Recording(log)) => {
                log.0.push_back(Event::Backward(loss));
                true
            }
            Some(Log::Replaying(log)) => {
                matches!(log.0.pop_front(), Some(Event::Backward(first)) if first == loss)
            }
        });
        assert!(
            is_same,
            "gradient release: {}. This backward has changed no weight",
            ReleaseError::NotRepeatable
        );
    }

    fn draw<T: Any>(&mut self, shape: &Shape, distribution: Distribution, dtype: DType) -> T {
        let drawn = match self.0.pop_front() {
            Some(Event::Draw(drawn)) => Some(drawn),
            Some(Event::Backward(_)) | None => None,
        };
        let drawn = drawn.filter(|drawn| {
            drawn.shape == *shape && drawn.distribution == distribution && drawn.dtype == dtype
        });
        match drawn.map(|drawn| drawn.value.downcast()) {
            Some(Ok(value)) => *value,
            _ => panic!(
                "gradient release: the second forward pass draws random numbers that the first did \
                 not (shape {shape:?}, {distribution:?}): clipping by the global norm runs the \
                 forward pass twice, and both must be the same"
            ),
        }
    }

    fn push(&mut self, shape: Shape, distribution: Distribution, dtype: DType, value: impl Any) {
        self.0.push_back(Event::Draw(Drawn {
            shape,
            distribution,
            dtype,
            value: Box::new(value),
        }));
    }
}

/// A random float tensor; `draw` asks the backend.
pub(crate) fn float<B: Backend>(
    shape: Shape,
    distribution: Distribution,
    dtype: DType,
    draw: impl FnOnce() -> FloatTensor<B>,
) -> FloatTensor<B> {
    let is_mask = matches!(distribution, Distribution::Bernoulli(_)) && shape.num_elements() > 0;
    LOG.with_borrow_mut(|log| match log {
        None => draw(),
        Some(Log::Replaying(log)) if is_mask => {
            let mask: Mask<B> = log.draw(&shape, distribution, dtype);
            mask.unpack()
        }
        Some(Log::Replaying(log)) => log.draw(&shape, distribution, dtype),
        Some(Log::Recording(log)) => {
            let value = draw();
            if is_mask {
                log.push(shape, distribution, dtype, Mask::<B>::pack(value.clone()));
            } else {
                log.push(shape, distribution, dtype, value.clone());
            }
            value
        }
    })
}

/// A random int tensor; `draw` asks the backend.
pub(crate) fn int<B: Backend>(
    shape: Shape,
    distribution: Distribution,
    draw: impl FnOnce() -> IntTensor<B>,
) -> IntTensor<B> {
    LOG.with_borrow_mut(|log| match log {
        None => draw(),
        Some(Log::Replaying(log)) => log.draw(&shape, distribution, DType::I64),
        Some(Log::Recording(log)) => {
            let value = draw();
            log.push(shape, distribution, DType::I64, value.clone());
            value
        }
    })
}
