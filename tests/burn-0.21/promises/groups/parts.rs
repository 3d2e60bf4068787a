//! Plain Burn with an optimizer for each part of a model.

use burn::optim::AdamW;
use serde_json::Value;

use crate::harness::prelude::*;

/// The parameters of a model with their paths, by Burn's own means of storing models.
pub(crate) fn paths<B: Backend, M: Module<B>>(model: &M) -> Vec<(String, ParamId)> {
    #[derive(Default)]
    struct Paths {
        names: Vec<String>,
        found: Vec<(String, ParamId)>,
    }

    impl<B: Backend> ModuleVisitor<B> for Paths {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.names.push(name.into());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.names.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.found.push((self.names.join("."), param.id));
        }

        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<B, D, Int>>) {
            self.found.push((self.names.join("."), param.id));
        }
    }

    let mut paths = Paths::default();
    model.visit(&mut paths);
    paths.found
}

/// The parameters whose path has one of these texts.
pub(crate) fn having<B: Backend, M: Module<B>>(model: &M, texts: &[&str]) -> Vec<ParamId> {
    let has = |path: &str| texts.iter().any(|text| path.contains(text));
    let found = paths(model).into_iter().filter(|(path, _)| has(path));
    found.map(|(_, id)| id).collect()
}

/// Moves the gradients of the parameters whose path has one of these texts into a container of
/// their own.
pub(crate) fn part<M: Module<P>>(
    model: &M,
    grads: &mut GradientsParams,
    texts: &[&str],
) -> GradientsParams {
    struct Take<'a> {
        ids: Vec<ParamId>,
        from: &'a mut GradientsParams,
        part: GradientsParams,
    }

    impl ModuleVisitor<P> for Take<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<P, D>>) {
            if self.ids.contains(&param.id)
                && let Some(grad) = self.from.remove::<Flex, D>(param.id)
            {
                self.part.register(param.id, grad);
            }
        }
    }

    let mut visitor = Take {
        ids: having::<P, M>(model, texts),
        from: grads,
        part: GradientsParams::new(),
    };
    model.visit(&mut visitor);
    visitor.part
}

/// What the parameters with one of these texts in their paths are stepped with, and the rate.
pub(crate) type Part<'a, O, M> = (&'a [&'a str], OptimizerAdaptor<O, M, P>, f64);

/// Plain Burn with an optimizer and a rate for each part; the first takes what is in no other part.
pub(crate) struct Parts<'a, O: SimpleOptimizer<Flex>, M: AutodiffModule<P>> {
    pub(crate) rest: (OptimizerAdaptor<O, M, P>, f64),
    pub(crate) parts: Vec<Part<'a, O, M>>,
}

impl<O: SimpleOptimizer<Flex>, M: AutodiffModule<P>> Parts<'_, O, M> {
    /// Parts that come first take a parameter.
    pub(crate) fn step(&mut self, mut model: M, mut grads: GradientsParams) -> M {
        for (texts, optim, rate) in &mut self.parts {
            let part = part(&model, &mut grads, texts);
            assert!(!part.is_empty());
            model = optim.step(*rate, model, part);
        }
        self.rest.0.step(self.rest.1, model, grads)
    }

    /// The states of all, readable.
    pub(crate) fn record(&self) -> Value {
        let optims = self.parts.iter().map(|(_, optim, _)| optim);
        let records = optims.chain([&self.rest.0]).map(|optim| optim.to_record());
        let all = records.flat_map(|record| match readable::<P, _>(record) {
            Value::Object(states) => states,
            other => panic!("not a map of states: {other}"),
        });
        Value::Object(all.collect())
    }
}

pub(crate) fn adamw<B: AutodiffBackend, M: AutodiffModule<B>>(
    decay: f32,
) -> OptimizerAdaptor<AdamW, M, B> {
    AdamWConfig::new().with_weight_decay(decay).init()
}
