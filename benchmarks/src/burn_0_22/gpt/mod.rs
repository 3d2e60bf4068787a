//! The [`gpt`](crate::gpt), a decoder, on Burn 0.22.
//!
//! It is compiled twice, from one file: of Burn's modules, and of those of burn-lean.

#![allow(clippy::duplicate_mod)] // That is the point.

#[path = "."]
mod plain {
    use crate::burn_0_22::loss::cross_entropy;
    use burn_0_22::nn;

    #[path = "model.rs"]
    pub(super) mod model;
}

#[path = "."]
mod lean {
    use crate::burn_0_22::loss::lean_cross_entropy as cross_entropy;
    use burn_lean::operations::nn;

    #[path = "model.rs"]
    pub(super) mod model;
}

pub(super) use lean::model::Gpt as LeanGpt;
pub(super) use plain::model::Gpt;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burn_0_22::scorer::{Scorer, testing};
    use crate::gpt::GptConfig;
    use burn::backend::Flex;
    use burn::module::Module as _;
    use burn_0_22::module::Module as _;
    use burn_0_22::tensor::Device;
    use testing::{CONTEXT, VOCABULARY};

    /// Name and shape of each parameter, in their order.
    type Parameters = Vec<(String, Vec<usize>)>;

    fn config() -> GptConfig {
        GptConfig::new(VOCABULARY, CONTEXT, 8, 2, 2, 32)
    }

    /// The same lines for both versions, whose visitors are different traits.
    macro_rules! parameters {
        ($model:expr, $burn:ident, [$($backend:ident)?], $tensor:ty) => {{
            #[derive(Default)]
            struct List {
                path: Vec<String>,
                found: Parameters,
            }
            impl $burn::module::ModuleVisitor$(<$backend>)? for List {
                fn visit_float<const D: usize>(&mut self, param: &$burn::module::Param<$tensor>) {
                    self.found.push((self.path.join("."), param.dims().to_vec()));
                }

                fn enter_module(&mut self, name: &str, _container: &str) {
                    self.path.push(name.into());
                }

                fn exit_module(&mut self, _name: &str, _container: &str) {
                    self.path.pop();
                }
            }
            let mut list = List::default();
            $model.visit(&mut list);
            list.found
        }};
    }

    #[test]
    fn it_has_the_parameters_that_it_has_on_burn_0_21() {
        let _alone = testing::alone();
        let before = config().init::<Flex>(&Default::default());
        let device = Device::flex().autodiff();
        let plain = <Gpt as Scorer<GptConfig>>::new(&config(), false, &device);
        let lean = <LeanGpt as Scorer<GptConfig>>::new(&config(), false, &device);
        assert_eq!(plain.num_params(), before.num_params());
        assert_eq!(lean.num_params(), before.num_params());

        let expected = parameters!(before, burn, [Flex], burn::tensor::Tensor<Flex, D>);
        assert!(expected.len() > 2 * 12);
        assert_eq!(
            parameters!(plain, burn_0_22, [], burn_0_22::tensor::Tensor<D>),
            expected
        );
        assert_eq!(
            parameters!(lean, burn_0_22, [], burn_0_22::tensor::Tensor<D>),
            expected
        );
    }

    #[test]
    fn recomputed_blocks_have_the_same_gradients() {
        let _alone = testing::alone();
        testing::recomputed_blocks_have_the_same_gradients::<_, Gpt>(&config());
        testing::recomputed_blocks_have_the_same_gradients::<_, LeanGpt>(&config());
    }

    #[test]
    fn chunks_and_lean_operations_differ_from_burns_by_rounding() {
        let _alone = testing::alone();
        testing::chunks_and_lean_operations_differ_by_rounding::<_, Gpt, LeanGpt>(&config());
    }
}
