//! Burn's optimizers behind one trait, so that a run can be written once for all of them.

use burn::module::AutodiffModule;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::*;
use burn::tensor::backend::{AutodiffBackend, Backend};

/// How to make an optimizer, on whichever backend it is for.
pub(crate) trait Recipe {
    /// The optimizer for one tensor.
    type Optim<B: Backend>: SimpleOptimizer<B> + 'static;

    /// The optimizer for a model.
    fn make<B, M>(&self) -> OptimizerAdaptor<Self::Optim<B::InnerBackend>, M, B>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>;
}

macro_rules! recipe {
    ($config:ty, $optim:ty) => {
        impl Recipe for $config {
            type Optim<B: Backend> = $optim;

            fn make<B, M>(&self) -> OptimizerAdaptor<Self::Optim<B::InnerBackend>, M, B>
            where
                B: AutodiffBackend,
                M: AutodiffModule<B>,
            {
                self.init()
            }
        }
    };
}

recipe!(SgdConfig, Sgd<B>);
recipe!(AdamConfig, Adam);
recipe!(AdamWConfig, AdamW);
recipe!(AdaGradConfig, AdaGrad);
recipe!(RmsPropConfig, RmsProp);
recipe!(AdanConfig, Adan);
recipe!(MuonConfig, Muon<B>);
