//! Groups by path: what is not decayed, and groups that match nothing.

use burn::module::ParamId;
use burn::nn::RmsNorm;
use burn_lean::{check_group, no_decay};

use crate::harness::prelude::*;

#[derive(Module, Debug)]
struct Many {
    embedding: Embedding,
    norms: Vec<LayerNorm>,
    rms: RmsNorm,
    batch: BatchNorm,
    head: Option<Linear>,
    position_bias: Param<Tensor<2>>,
    table: Param<Tensor<2>>,
}

impl Many {
    fn new(device: &Device) -> Self {
        let table = || Param::from_tensor(Tensor::zeros([2, 2], device));
        Self {
            embedding: EmbeddingConfig::new(4, 2).init(device),
            norms: vec![LayerNormConfig::new(2).init(device)],
            rms: RmsNormConfig::new(2).init(device),
            batch: BatchNormConfig::new(2).init(device),
            head: Some(LinearConfig::new(2, 2).init(device)),
            position_bias: table(),
            table: table(),
        }
    }
}

#[test]
fn biases_norms_embeddings_and_vectors_are_not_decayed() {
    let model = Many::new(&flex());
    let is_in = |group: &ParamGroup, path: &str| group.matches(&ParamId::new(), Some(path));
    let expected = [
        ("embedding.weight", true),
        ("norms.0.gamma", true),
        ("norms.0.beta", true),
        ("rms.gamma", true),
        ("batch.gamma", true),
        // A running statistic, which nobody trains.
        ("batch.running_mean", false),
        ("head.weight", false),
        ("head.bias", true),
        ("position_bias", true),
        ("table", false),
    ];
    let group = no_decay(&model);
    for (path, is_expected) in expected {
        assert_eq!(is_in(&group, path), is_expected, "{path}");
    }
}

/// At whichever call comes first, with the paths that were meant, and nothing has changed.
#[test]
fn a_group_without_parameters_is_refused() {
    let misspelt = [
        ParamGroup::from_predicate("frist"),
        ParamGroup::from_path("first.wieght"),
        ParamGroup::from_regex(r"^firts\.weight").unwrap(),
        ParamGroup::from_path("second.weight.")
            .fuse(&ParamGroup::from_predicates(vec!["tide", "x"])),
        ParamGroup::from_ids(vec![ParamId::new()]),
    ];
    let before = bits(&small());
    for group in misspelt {
        let own = AdamWConfig::new().build();
        let optim = adamw().with_gradient_release();
        let mut optim = optim.with_group(group.clone(), own, None);
        let model = small();
        let error = check_group(&model, &group).unwrap_err();
        let refused = optim.try_backward(LR, model.loss(0), model).unwrap_err();
        assert_eq!(*refused.error(), error);
        let (model, loss) = refused.into_given();
        assert!(loss.is_some());
        let refused = optim.try_accumulate(loss.unwrap(), &model).unwrap_err();
        assert_eq!(*refused.error(), error);
        let grads = grads_of(&model, 0);
        let refused = optim.try_step(LR, model, grads).unwrap_err();
        assert_eq!(*refused.error(), error);
        let (model, grads) = refused.into_given();
        assert_eq!(grads.len(), PARAMS);
        assert_bits(&bits(&model), &before, "refused");
        let ReleaseError::EmptyGroup { group, near } = error else {
            panic!("{error:?}");
        };
        assert_eq!(near.len(), 3);
        match group.as_str() {
            r#"["first.wieght"]"# => assert_eq!(near[0], "first.weight"),
            r#"["frist"]"# => assert!(near[0].starts_with("first."), "{near:?}"),
            r#"["^firts\\.weight"]"# => {}
            r#"["second.weight.", "tide", "x"]"# => {
                assert!(near.contains(&"tied".to_string()), "{near:?}");
            }
            ids if ids.starts_with("the ids given") => {}
            other => panic!("{other}"),
        }
    }
}

/// A group may be of nothing, without a mistake in it.
#[test]
fn matrices_alone_are_all_decayed() {
    let model: Linear = LinearConfig::new(4, 4).with_bias(false).init(&flex());
    let group = no_decay(&model);
    let error = check_group(&model, &group).unwrap_err();
    assert_error!(error, EmptyGroup, "leave it out");
}

/// Burn draws a weight when it is first read.
#[test]
fn a_check_reads_no_weight() {
    let model: Linear = LinearConfig::new(4, 4).init(&flex());
    check_group(&model, &ParamGroup::from_path("weight")).unwrap();
    assert!(!model.weight.is_initialized());
}

/// States of other parameters stay; those of the group begin anew, as in Burn.
#[test]
fn a_group_that_comes_later_is_burns() {
    let loss = |model: &Small, step: usize| model.loss(step);
    let group = || ParamGroup::from_predicate("second");
    let own = || AdamWConfig::new().with_weight_decay(0.5).build();
    let mut plain = adamw();
    let (model, mut expected) = plain_run(small(), &mut plain, 0..3, loss);
    let mut plain = plain.with_group(group(), own(), None);
    let (_, after) = plain_run(model, &mut plain, 3..6, loss);
    expected.extend(after);
    let mut optim = adamw().with_gradient_release();
    let (model, _) = release_run(small(), &mut optim, 0..3, loss, &expected[..3], "before");
    let mut optim = optim.with_group(group(), own(), None);
    release_run(model, &mut optim, 3..6, loss, &expected[3..], "after");
}
