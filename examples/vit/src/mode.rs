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
            adaptor::OptimizerAdaptor, momentum::MomentumConfig,
        };
        use burn_lean_optim::{
            AdaLomoConfig, AdafactorConfig, CameConfig, EightBitMoments, InOnePass, LionConfig,
            RAdamConfig, StableAdamWConfig,
        };
        use burn_memory_timeline::RecordSteps;
        use $crate::config::OptimizerKind;
        macro_rules! made {
            ($made_from:expr) => {{
                let optimizer =
                    OptimizerAdaptor::<_, $crate::model::Vit<$backend>, $backend>::from($made_from);
                let $optimizer = optimizer.recorded();
                $made
            }};
        }
        // A vision transformer has no embedding that would keep its moments in 32 bits.
        let embeddings = || Vec::<burn::nn::Embedding<$backend>>::new();
        let adamw = || AdamWConfig::new().with_weight_decay(0.05);
        match $kind {
            OptimizerKind::Adam => made!(AdamConfig::new().build()),
            OptimizerKind::AdamOnePass => made!(AdamConfig::new().in_one_pass()),
            OptimizerKind::Adam8bit => {
                made!(
                    AdamConfig::new()
                        .in_one_pass()
                        .with_8_bit_moments(&embeddings())
                )
            }
            OptimizerKind::AdamW => made!(adamw().build()),
            OptimizerKind::AdamWOnePass => made!(adamw().in_one_pass()),
            OptimizerKind::AdamW8bit => {
                made!(adamw().in_one_pass().with_8_bit_moments(&embeddings()))
            }
            OptimizerKind::StableAdamW => {
                made!(StableAdamWConfig::new().with_weight_decay(0.05).build())
            }
            OptimizerKind::RAdam => made!(RAdamConfig::new().build()),
            OptimizerKind::Lion => made!(LionConfig::new().build()),
            OptimizerKind::Adafactor => made!(AdafactorConfig::new().build()),
            OptimizerKind::AdaLomo => made!(AdaLomoConfig::new().build()),
            OptimizerKind::Came => made!(CameConfig::new().build()),
            OptimizerKind::Sgd => {
                let momentum = Some(MomentumConfig::new());
                made!(SgdConfig::new().with_momentum(momentum).build())
            }
            OptimizerKind::AdaGrad => made!(AdaGradConfig::new().build()),
            OptimizerKind::RmsProp => made!(RmsPropConfig::new().build()),
            OptimizerKind::Adan => made!(AdanConfig::new().build()),
        }
    }};
}
pub(crate) use with_optimizer;
