//! The optimizers by the names on the command line.

/// Evaluates an expression with the optimizer of this kind, and with the same one without weight
/// decay. It is compiled once for each, on each backend.
macro_rules! with_optimizer {
    ($kind:expr, $weight_decay:expr, $backend:ty, |$optimizer:ident, $undecayed:pat_param| $made:expr) => {{
        use burn::optim::{
            AdamWConfig, SgdConfig, adaptor::OptimizerAdaptor, momentum::MomentumConfig,
        };
        use burn_gradient_release_optim::{AdafactorConfig, EightBitMoments, InOnePass};
        use burn_gradient_release_timeline::RecordSteps;
        use vit_0_21::config::OptimizerKind;
        macro_rules! made {
            (|$decay:pat_param| $made_from:expr) => {{
                let make = |$decay: f64| {
                    let made = $made_from;
                    OptimizerAdaptor::<_, vit_0_21::model::Vit<$backend>, $backend>::from(made)
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
