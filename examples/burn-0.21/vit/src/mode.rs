//! Burn's backends and optimizers, with and without gradient release.

use burn::backend::Autodiff;
use burn_gradient_release::GradientRelease;

/// Burn's backend for training.
pub type Plain<B, C> = Autodiff<B, C>;

/// The same with gradient release around it.
pub type Release<B, C> = GradientRelease<Autodiff<B, C>>;

/// Evaluates an expression with the optimizer of this kind, and with the same one without weight
/// decay.
macro_rules! with_optimizer {
    ($kind:expr, $weight_decay:expr, $backend:ty, |$optimizer:ident, $undecayed:pat_param| $made:expr) => {{
        use burn::optim::{
            AdamConfig, AdamWConfig, SgdConfig, adaptor::OptimizerAdaptor, momentum::MomentumConfig,
        };
        use burn_gradient_release_optim::{
            AdafactorConfig, EightBitMoments, InOnePass, LionConfig,
        };
        use burn_gradient_release_timeline::RecordSteps;
        use $crate::config::OptimizerKind;
        macro_rules! made {
            (|$decay:ident| $made_from:expr) => {{
                let make = |$decay: f64| {
                    let made = $made_from;
                    OptimizerAdaptor::<_, $crate::model::Vit<$backend>, $backend>::from(made)
                        .recorded()
                };
                let $optimizer = make($weight_decay);
                let $undecayed = make(0.0);
                $made
            }};
            ($made_from:expr) => {
                made!(|_decay| $made_from)
            };
        }
        // A vision transformer has no embedding that would keep its moments in 32 bits.
        let embeddings = || Vec::<burn::nn::Embedding<$backend>>::new();
        let adamw = |decay: f64| AdamWConfig::new().with_weight_decay(decay as f32);
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
            OptimizerKind::AdamW => made!(|decay| adamw(decay).build()),
            OptimizerKind::AdamWOnePass => made!(|decay| adamw(decay).in_one_pass()),
            OptimizerKind::AdamW8bit => {
                made!(|decay| adamw(decay).in_one_pass().with_8_bit_moments(&embeddings()))
            }
            OptimizerKind::Lion => made!(LionConfig::new().build()),
            OptimizerKind::Adafactor => made!(AdafactorConfig::new().build()),
            OptimizerKind::Sgd => {
                let momentum = || Some(MomentumConfig::new());
                made!(SgdConfig::new().with_momentum(momentum()).build())
            }
        }
    }};
}
pub(crate) use with_optimizer;
