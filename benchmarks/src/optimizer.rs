//! The optimizers that are measured, with the defaults of their configurations.

use crate::stepper::Stepper;
use crate::workload::Workload;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamConfig, AdamWConfig};
use burn::tensor::backend::AutodiffBackend;
use burn_gradient_release::{Recompute, ReleaseBackend, WithGradientRelease};
use burn_gradient_release_optim::{
    AdafactorConfig, EightBitMoments, InOnePass, LeanBackend, LionConfig,
};
use burn_gradient_release_timeline::RecordSteps;
use vit_0_21::config::OptimizerKind;

/// What is measured on Burn 0.21, where each one is compiled for every model and backend.
pub const MEASURED: [OptimizerKind; 8] = [
    OptimizerKind::Adam,
    OptimizerKind::AdamOnePass,
    OptimizerKind::Adam8bit,
    OptimizerKind::AdamW,
    OptimizerKind::AdamWOnePass,
    OptimizerKind::AdamW8bit,
    OptimizerKind::Adafactor,
    OptimizerKind::Lion,
];

type Boxed<W, B> = Box<dyn Stepper<<W as Workload>::Model<B>, B>>;

macro_rules! with_optimizer {
    ($kind:expr, $model:expr, |$optimizer:ident| $made:expr) => {{
        macro_rules! made {
            ($optimizer_made:expr) => {{
                let $optimizer = OptimizerAdaptor::<_, W::Model<B>, B>::from($optimizer_made);
                let $optimizer = $optimizer.recorded();
                Box::new($made)
            }};
        }
        let (adam, adamw) = (AdamConfig::new(), AdamWConfig::new());
        match $kind {
            OptimizerKind::Adam => made!(adam.build()),
            OptimizerKind::AdamOnePass => made!(adam.in_one_pass()),
            OptimizerKind::Adam8bit => made!(adam.in_one_pass().with_8_bit_moments($model)),
            OptimizerKind::AdamW => made!(adamw.build()),
            OptimizerKind::AdamWOnePass => made!(adamw.in_one_pass()),
            OptimizerKind::AdamW8bit => made!(adamw.in_one_pass().with_8_bit_moments($model)),
            OptimizerKind::Adafactor => made!(AdafactorConfig::new().build()),
            OptimizerKind::Lion => made!(LionConfig::new().build()),
            kind => unreachable!("`plan` leaves {kind} out"),
        }
    }};
}

/// The optimizer without gradient release.
pub fn plain<W, B>(kind: OptimizerKind, model: &W::Model<B>) -> Boxed<W, B>
where
    W: Workload,
    B: AutodiffBackend<InnerBackend: LeanBackend>,
{
    with_optimizer!(kind, model, |optimizer| optimizer)
}

/// The optimizer with gradient release.
pub fn release<W, B>(kind: OptimizerKind, model: &W::Model<B>, recompute: Recompute) -> Boxed<W, B>
where
    W: Workload,
    B: ReleaseBackend<InnerBackend: LeanBackend>,
{
    with_optimizer!(kind, model, |optimizer| optimizer
        .with_gradient_release()
        .with_recompute(recompute))
}
