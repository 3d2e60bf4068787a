//! Which parameters a [`ParamGroup`] matches.

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::norm::{Normalization, NormalizationConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Embedding, EmbeddingConfig, GroupNorm, GroupNormConfig,
    InstanceNorm, InstanceNormConfig, Lstm, LstmConfig, PRelu, PReluConfig, RmsNorm, RmsNormConfig,
};
use burn_gradient_release::ParamGroupError;

use super::parts::paths;
use crate::harness::prelude::*;

#[derive(Module, Debug)]
struct Model<B: Backend> {
    tokens: Embedding<B>,
    positions: Param<Tensor<B, 2>>,
    lookup: Param<Tensor<B, 1, Int>>,
    blocks: Vec<Block<B>>,
    pair: (Linear<B>, RmsNorm<B>),
    gains: [Param<Tensor<B, 1>>; 2],
    norm: Normalization<B>,
    lstm: Lstm<B>,
    frozen: Linear<B>,
    head: Head<B>,
}

#[derive(Module, Debug)]
struct Block<B: Backend> {
    conv: Conv2d<B>,
    batch: BatchNorm<B>,
    group: GroupNorm<B>,
    instance: InstanceNorm<B>,
    layer: LayerNorm<B>,
    act: PRelu<B>,
}

#[derive(Module, Debug)]
struct Head<B: Backend> {
    projection: Linear<B>,
    row_bias: Param<Tensor<B, 2>>,
}

impl<B: Backend> Model<B> {
    fn new() -> Self {
        let device = &Default::default();
        let linear = |bias| LinearConfig::new(2, 2).with_bias(bias).init(device);
        let block = || Block {
            conv: Conv2dConfig::new([2, 2], [1, 1]).init(device),
            batch: BatchNormConfig::new(2).init(device),
            group: GroupNormConfig::new(1, 2).init(device),
            instance: InstanceNormConfig::new(2).init(device),
            layer: LayerNormConfig::new(2).init(device),
            act: PReluConfig::new().init(device),
        };
        let matrix = || Param::from_tensor(Tensor::ones([2, 2], device));
        Self {
            tokens: EmbeddingConfig::new(3, 2).init(device),
            positions: matrix(),
            lookup: Param::initialized(ParamId::new(), Tensor::ones([2], device)),
            blocks: vec![block(), block()],
            pair: (linear(true), RmsNormConfig::new(2).init(device)),
            gains: [0, 1].map(|_| Param::from_tensor(Tensor::ones([2], device))),
            norm: NormalizationConfig::Layer(LayerNormConfig::new(2)).init(device),
            lstm: LstmConfig::new(2, 2, true).init(device),
            frozen: linear(true).no_grad(),
            head: Head {
                projection: linear(false),
                row_bias: matrix(),
            },
        }
    }
}

/// The paths of the parameters that are in the group, in the order of the model.
fn matched<M: Module<Release>>(model: &M, group: &ParamGroup) -> Vec<String> {
    let in_group = |(path, id): &(String, ParamId)| group.matches(id, Some(path));
    let found = paths(model).into_iter().filter(in_group);
    found.map(|(path, _)| path).collect()
}

#[test]
fn what_is_not_decayed() {
    let model = Model::<Release>::new();
    let names = "tokens.weight pair.0.bias pair.1.gamma gains.0 gains.1 norm.Layer.gamma \
                 norm.Layer.beta head.row_bias";
    let mut expected: Vec<_> = names.split(' ').map(str::to_owned).collect();
    for block in [0, 1] {
        let names = "conv.bias batch.gamma batch.beta group.gamma group.beta instance.gamma \
                     instance.beta layer.gamma layer.beta act.alpha";
        let names = names.split(' ');
        expected.extend(names.map(|name| format!("blocks.{block}.{name}")));
    }
    for gate in ["input", "forget", "output", "cell"] {
        let of = |part| format!("lstm.{gate}_gate.{part}_transform.bias");
        expected.extend(["input", "hidden"].map(of));
    }

    let group = ParamGroup::no_decay(&model);
    let mut given = matched(&model, &group);
    given.sort();
    expected.sort();
    assert_eq!(given, expected);
}

/// A record brings its own ids.
#[test]
fn what_is_not_decayed_stays_so_after_loading() {
    let model = Model::<Release>::new();
    let group = ParamGroup::no_decay(&model);
    let by_id = ParamGroup::ids_from_module(&model);
    let before = matched(&model, &group);

    let model = model.load_record(Model::<Release>::new().into_record());
    assert_eq!(matched(&model, &group), before);
    assert_eq!(matched(&model, &by_id), Vec::<String>::new());
}

#[test]
fn every_parameter_of_a_module_by_id() {
    let model = Model::<Release>::new();
    let group = ParamGroup::ids_from_module(&model.blocks[1]);
    let given = matched(&model, &group);
    let all: Vec<_> = paths(&model).into_iter().map(|(path, _)| path).collect();
    let expected = all.iter().filter(|path| path.starts_with("blocks.1."));
    assert_eq!(given, expected.cloned().collect::<Vec<_>>());
    for group in [ParamGroup::ids_from_module(&model), ParamGroup::all()] {
        assert_eq!(matched(&model, &group), all);
    }
}

/// Matched by a path alone.
fn has(group: &ParamGroup, path: &str) -> bool {
    group.matches(&ParamId::new(), Some(path))
}

#[test]
fn by_paths_texts_and_patterns() {
    let [a, ab, b, c] = ["a.weight", "a.b.weight", "b.bias", "c.bias"];
    let regexes = |patterns: &[&str]| ParamGroup::from_regexes(patterns).expect("valid");
    let any_regexes = |patterns: &[&str]| ParamGroup::from_any_regexes(patterns).expect("valid");
    let none: [&str; 0] = [];
    let cases: Vec<(ParamGroup, Vec<&str>)> = vec![
        (ParamGroup::from_path(a), vec![a]),
        (ParamGroup::from_path("weight"), vec![]),
        (ParamGroup::from_paths([a, c]), vec![a, c]),
        (ParamGroup::from_paths(none), vec![]),
        (ParamGroup::from_predicate("weight"), vec![a, ab]),
        (ParamGroup::from_predicates(["b.", "weight"]), vec![ab]),
        (ParamGroup::from_predicates(none), vec![a, ab, b, c]),
        (
            ParamGroup::from_any_predicates(["b.", "a.w"]),
            vec![a, ab, b],
        ),
        (ParamGroup::from_any_predicates(none), vec![]),
        (regexes(&[r"^\w\.weight$"]), vec![a]),
        (regexes(&["b", "t$"]), vec![ab]),
        (regexes(&[]), vec![a, ab, b, c]),
        (any_regexes(&["^b", "^c"]), vec![b, c]),
        (any_regexes(&[]), vec![]),
    ];
    for (group, expected) in cases {
        let given: Vec<_> = [a, ab, b, c]
            .into_iter()
            .filter(|path| has(&group, path))
            .collect();
        assert_eq!(given, expected, "{group}");
        // What is named by its path cannot be found without one.
        assert!(!group.matches(&ParamId::new(), None), "{group}");
    }
    let id = ParamId::new();
    let group = ParamGroup::from_ids(vec![id]);
    assert!(group.matches(&id, None) && group.matches(&id, Some(a)));
    assert!(!has(&group, a));
    assert!(ParamGroup::all().matches(&id, None));
}

/// Union and difference, exclusions included: Burn 0.22 drops those.
#[test]
fn fused_and_excluded() {
    let without_bias =
        |text| ParamGroup::from_predicate(text).exclude(ParamGroup::from_predicate("bias"));
    let fused = without_bias("a").fuse(&ParamGroup::from_path("b.bias"));
    assert!(has(&fused, "a.weight") && has(&fused, "b.bias"));
    assert!(!has(&fused, "a.bias") && !has(&fused, "b.weight"));
    // The exclusion of the side that is fused in.
    let fused = ParamGroup::from_path("b.bias").fuse(&without_bias("a"));
    assert!(has(&fused, "a.weight") && has(&fused, "b.bias") && !has(&fused, "a.bias"));
    // An excluded group does not have what it excludes.
    let kept = ParamGroup::all().exclude(without_bias("a"));
    assert!(has(&kept, "a.bias") && has(&kept, "b.weight") && !has(&kept, "a.weight"));
    // Twice excluded, and fused after that.
    let twice = without_bias("a").exclude(ParamGroup::from_path("a.weight"));
    assert!(has(&twice, "a.gain") && !has(&twice, "a.weight") && !has(&twice, "a.bias"));
    assert!(has(&twice.fuse(&ParamGroup::from_path("a.bias")), "a.bias"));
}

#[test]
fn in_one_line() {
    let ids = [ParamId::new(), ParamId::new()];
    let bias = ParamGroup::from_predicate("bias");
    let regex = ParamGroup::from_regex(r"^a\.").expect("valid");
    let fused = ParamGroup::from_path("a").fuse(&bias);
    let any = ParamGroup::from_any_predicates(["a", "b"]);
    let cases = [
        (ParamGroup::all(), "all parameters"),
        (ParamGroup::from_ids([ids[0]]), "1 id"),
        (ParamGroup::from_ids(ids), "2 ids"),
        (
            ParamGroup::from_path("head.weight"),
            r#"path "head.weight""#,
        ),
        (ParamGroup::from_paths(["b", "a"]), r#"paths "a" and "b""#),
        (
            ParamGroup::from_paths(["c", "b", "a"]),
            r#"3 paths, "a" to "c""#,
        ),
        (bias.clone(), r#"paths with "bias""#),
        (
            ParamGroup::from_predicates(["a", "b"]),
            r#"paths with "a" and "b""#,
        ),
        (any, r#"paths with "a" or paths with "b""#),
        (regex.clone(), r"regex /^a\./"),
        (fused.clone(), r#"path "a" or paths with "bias""#),
        (
            fused.exclude(regex.exclude(bias)),
            r#"(path "a" or paths with "bias") but not (regex /^a\./ but not paths with "bias")"#,
        ),
    ];
    for (group, expected) in cases {
        assert_eq!(group.to_string(), expected);
    }
}

#[test]
fn a_wrong_pattern_is_refused() {
    let errors = [
        ParamGroup::from_regex("[a").expect_err("refused"),
        ParamGroup::from_regexes(["a", "[a"]).expect_err("refused"),
        ParamGroup::from_any_regexes(["a", "[a"]).expect_err("refused"),
    ];
    for error in errors {
        let ParamGroupError::InvalidPatternError(text) = &error else {
            panic!("another error: {error}");
        };
        assert!(text.contains("[a") && text.contains("unclosed"), "{text}");
    }
}

/// Drawn before the others, a parameter would take their random numbers.
#[test]
fn a_group_draws_no_weights() {
    let model: Linear<R> = LinearConfig::new(4, 2).init(&Default::default());
    let _ = ParamGroup::no_decay(&model);
    let _ = ParamGroup::ids_from_module(&model);
    assert!(!model.weight.is_initialized());
}
