//! Burn's backends and optimizers, with and without gradient release.

use burn::backend::Autodiff;
use burn_gradient_release::GradientRelease;

/// Burn's backend for training.
pub type Plain<B, C> = Autodiff<B, C>;

/// The same with gradient release around it.
pub type Release<B, C> = GradientRelease<Autodiff<B, C>>;

/// Evaluates an expression with the optimizer of this kind.
macro_rules! with_optimizer {
    ($kind:expr, $backend:ty, |$optimizer:ident| $made:expr) => {{
        use burn::optim::{
            AdaGradConfig, AdamConfig, AdamWConfig, AdanConfig, RmsPropConfig, SgdConfig,
            momentum::MomentumConfig,
        };
        use burn_memory_timeline::RecordSteps;
        macro_rules! made {
            ($config:expr) => {{
                let optimizer = $config.init::<$backend, $crate::model::Vit<$backend>>();
                let $optimizer = optimizer.recorded();
                $made
            }};
        }
        match $kind {
            $crate::config::OptimizerKind::Adam => made!(AdamConfig::new()),
            $crate::config::OptimizerKind::AdamW => {
                made!(AdamWConfig::new().with_weight_decay(0.05))
            }
            $crate::config::OptimizerKind::Sgd => {
                made!(SgdConfig::new().with_momentum(Some(MomentumConfig::new())))
            }
            $crate::config::OptimizerKind::AdaGrad => made!(AdaGradConfig::new()),
            $crate::config::OptimizerKind::RmsProp => made!(RmsPropConfig::new()),
            $crate::config::OptimizerKind::Adan => made!(AdanConfig::new()),
        }
    }};
}
pub(crate) use with_optimizer;
