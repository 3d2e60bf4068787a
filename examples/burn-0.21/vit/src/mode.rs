//! Burn's backends and optimizers, with and without gradient release.

use burn::backend::Autodiff;
use burn_gradient_release::GradientRelease;
use vit_common::config::OptimizerKind;

/// Burn's backend for training.
pub type Plain<B, C> = Autodiff<B, C>;

/// The same with gradient release around it.
pub type Release<B, C> = GradientRelease<Autodiff<B, C>>;

/// Whether [`with_optimizer`] has this one: the training is compiled once for each, on each backend.
pub(crate) fn has(kind: OptimizerKind) -> bool {
    use OptimizerKind::{Adafactor, AdamW, AdamW8bit, AdamWOnePass, Sgd};
    matches!(kind, AdamW | AdamWOnePass | AdamW8bit | Adafactor | Sgd)
}

/// Evaluates an expression with the optimizer of this kind, and with the same one without weight
/// decay.
macro_rules! with_optimizer {
    ($kind:expr, $weight_decay:expr, $backend:ty, |$optimizer:ident, $undecayed:pat_param| $made:expr) => {{
        use burn::optim::{
            AdamWConfig, SgdConfig, adaptor::OptimizerAdaptor, momentum::MomentumConfig,
        };
        use burn_gradient_release_optim::{AdafactorConfig, EightBitMoments, InOnePass};
        use burn_gradient_release_timeline::RecordSteps;
        use $crate::config::OptimizerKind;
        macro_rules! made {
            (|$decay:pat_param| $made_from:expr) => {{
                let make = |$decay: f64| {
                    let made = $made_from;
                    OptimizerAdaptor::<_, $crate::model::Vit<$backend>, $backend>::from(made)
                        .recorded()
                };
                let $optimizer = make($weight_decay);
                let $undecayed = make(0.0);
                $made
            }};
        }
        // A vision transformer has no embedding that would keep its moments in 32 bits.
        let embeddings = || Vec::<burn::nn::Embedding<$backend>>::new();
        let adamw = |decay: f64| AdamWConfig::new().with_weight_decay(decay as f32);
        let momentum = || Some(MomentumConfig::new());
        match $kind {
            OptimizerKind::AdamW => made!(|decay| adamw(decay).build()),
            OptimizerKind::AdamWOnePass => made!(|decay| adamw(decay).in_one_pass()),
            OptimizerKind::AdamW8bit => {
                made!(|decay| adamw(decay).in_one_pass().with_8_bit_moments(&embeddings()))
            }
            OptimizerKind::Adafactor => made!(|_| AdafactorConfig::new().build()),
            OptimizerKind::Sgd => made!(|_| SgdConfig::new().with_momentum(momentum()).build()),
            kind => ::anyhow::bail!("--optimizer {kind} is not in this example"),
        }
    }};
}
pub(crate) use with_optimizer;
