//! Burn's optimizer with gradient release around it.

mod checks;
#[cfg(feature = "optim")]
mod master_weights;
mod micro_batches;
mod model;
mod one_param;
mod part;
mod pass;
mod records;
mod report;
#[cfg(feature = "optim")]
mod saved_states;
mod settings;
mod step;
mod two_passes;

use burn::module::ParamGroup;
use burn::optim::ModuleOptimizer;

use crate::error::ReleaseError;
use crate::gradients::Pipeline;
use checks::Asked;
#[cfg(all(feature = "optim", feature = "safetensors"))]
pub(crate) use master_weights::MasterWeights;
#[cfg(feature = "optim")]
pub(crate) use master_weights::{Request, fulfil, request};
use model::Sums;
#[cfg(feature = "data-parallel")]
pub(crate) use model::as_param;
pub(crate) use model::with_value;
#[cfg(feature = "data-parallel")]
pub(crate) use one_param::record_of;
#[cfg(any(feature = "timeline", feature = "train"))]
pub(crate) use one_param::step_one;
pub use part::{Accumulating, Measuring, Part, RefusedPass, Stepping, backward, try_backward};
use pass::Stepper;
pub use report::{Outcome, StepReport};

/// Adds gradient release to Burn's optimizer.
pub trait WithGradientRelease {
    /// Makes the optimizer step inside backward. It keeps its states.
    fn with_gradient_release(self) -> ReleaseOptimizer;
}

impl<O: IntoModuleOptimizer> WithGradientRelease for O {
    fn with_gradient_release(self) -> ReleaseOptimizer {
        self.into_module_optimizer().into()
    }
}

/// What gradient release can be added to: Burn's [`ModuleOptimizer`].
#[diagnostic::on_unimplemented(
    message = "gradient release steps Burn's `ModuleOptimizer`, not `{Self}`",
    label = "not a `ModuleOptimizer`",
    note = "`init()` makes one from an optimizer's configuration; L-BFGS has none, as it needs all \
            gradients of a step at once, several times"
)]
pub trait IntoModuleOptimizer {
    /// The optimizer.
    fn into_module_optimizer(self) -> ModuleOptimizer;
}

impl IntoModuleOptimizer for ModuleOptimizer {
    fn into_module_optimizer(self) -> ModuleOptimizer {
        self
    }
}

/// An optimizer that steps each parameter inside backward, the moment its gradient is complete.
///
/// # Example
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::AdamWConfig;
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_lean::WithGradientRelease;
///
/// let device = Device::flex().autodiff();
/// let mut model: Linear = LinearConfig::new(16, 4).init(&device);
/// let mut optim = AdamWConfig::new().init().with_gradient_release();
///
/// for step in 0..3 {
///     let lr = 1e-3 / (1.0 + step as f64);
///     let batch = Tensor::<2>::random([8, 16], Distribution::Default, &device);
///     let loss = model.forward(batch).square().mean();
///     model = optim.backward(lr, loss, model);
/// }
/// ```
///
/// Between two calls the model is Burn's, with its weights. While one runs, no other code has it:
///
/// ```compile_fail,E0382
/// # use burn::nn::{Linear, LinearConfig};
/// # use burn::optim::AdamWConfig;
/// # use burn::tensor::{Device, Tensor};
/// # use burn_lean::WithGradientRelease;
/// # let device = Device::flex().autodiff();
/// # let model: Linear = LinearConfig::new(16, 4).init(&device);
/// # let mut optim = AdamWConfig::new().init().with_gradient_release();
/// let loss = model.forward(Tensor::<2>::ones([8, 16], &device)).mean();
/// let stepped = optim.backward(1e-3, loss, model);
/// model.forward(Tensor::<2>::ones([8, 16], &device)); // the model has moved
/// # let _ = stepped;
/// ```
///
/// # Panics
///
/// A method with a `try_` twin panics with the text of the [`ReleaseError`] that the twin returns. A
/// panic inside backward, as one of the optimizer, takes the model with it: load the last checkpoint
/// into a new one, and into the optimizer.
#[derive(Debug)]
pub struct ReleaseOptimizer {
    /// A pass has it while it runs.
    stepper: Option<Box<Stepper>>,
    /// The gradients of micro-batches.
    sums: Sums,
    sums_in_f32: bool,
    /// Groups that must match a parameter of the model.
    groups: Vec<ParamGroup>,
    asked: Asked,
    /// How many parameters of how many were stepped when a step was interrupted.
    interrupted: Option<(usize, usize)>,
    /// Boxed, because errors return the optimizer by value.
    last_step: Option<Box<StepReport>>,
}

impl From<ModuleOptimizer> for ReleaseOptimizer {
    fn from(optim: ModuleOptimizer) -> Self {
        Self {
            stepper: Some(Box::new(Stepper {
                optim,
                pipeline: Pipeline::default(),
                in_flight: None,
            })),
            sums: Sums::new(),
            sums_in_f32: false,
            groups: Vec::new(),
            asked: Asked::default(),
            interrupted: None,
            last_step: None,
        }
    }
}

impl ReleaseOptimizer {
    fn stepper(&self) -> &Stepper {
        self.stepper.as_ref().expect(HERE)
    }

    fn stepper_mut(&mut self) -> &mut Stepper {
        self.stepper.as_mut().expect(HERE)
    }

    fn check_whole(&self) -> Result<(), ReleaseError> {
        match self.interrupted {
            Some((stepped, of)) => Err(ReleaseError::Interrupted { stepped, of }),
            None => Ok(()),
        }
    }

    /// The report of the last step.
    pub fn last_step(&self) -> Option<&StepReport> {
        self.last_step.as_deref()
    }
}

const HERE: &str = "a pass gives the stepper back";
