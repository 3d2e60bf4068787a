use super::*;
use crate::results::Settings;
use std::num::NonZeroUsize;
use std::time::Duration;

/// The options that the command line has by default, with one mode of PyTorch.
fn request() -> Request {
    Request {
        command: Vec::new(),
        kinds: vec![Kind::Vit, Kind::Gpt],
        vocabulary: true,
        preset: None,
        sizes: Sizes::default(),
        batch_sizes: Vec::new(),
        burns: vec![BurnVersion::V0_21],
        backends: Vec::new(),
        fusion: vec![true, false],
        modes: vec![Mode::Plain, Mode::Release],
        checkpointing: vec![Checkpointing::None],
        operations: vec![Operations::Default],
        linear: vec![LinearGradient::Default],
        optimizers: Vec::new(),
        loss_chunks: vec![LossChunk::WHOLE],
        python: Some("python3".into()),
        torch_modes: vec![TorchMode::Hook],
        timelines: None,
        settings: Settings {
            warm_up: 1,
            steps: 2,
            repeat: 1,
            learning_rate: 1e-3,
            seed: 42,
        },
        time_limit: Duration::from_secs(1),
        within: None,
    }
}

/// The same with a tiny model, without PyTorch.
fn tiny() -> Request {
    Request {
        preset: Some(Preset::Tiny),
        batch_sizes: vec![1],
        torch_modes: Vec::new(),
        ..request()
    }
}

fn available(backends: &[BackendKind], packages: Option<&str>) -> Available {
    Available {
        backends: backends.to_vec(),
        missing: Vec::new(),
        pytorch: Ok(TorchVersions {
            python: "3".into(),
            torch: "2".into(),
            optimi: packages.map(String::from),
            torchao: packages.map(String::from),
            cuda: Some("13".into()),
            gpu: None,
            threads: 1,
        }),
    }
}

/// The tasks of a plan, each in one line.
fn lines(plan: &Plan) -> Vec<String> {
    let line = |task: &Task| match task {
        Task::Measure {
            case,
            subject,
            repetition,
        } => format!("{} #{repetition}", case.with(subject)),
        Task::Record { case, subject, .. } => format!("record {}", case.with(subject)),
        Task::SearchVocabulary {
            model,
            backend,
            arithmetic,
            ..
        } => {
            let mut words = vec![format!("vocabulary of {model}, {backend}")];
            words.extend(arithmetic.words());
            words.join(", ")
        }
    };
    plan.tasks.iter().map(line).collect()
}

fn what(plan: &Plan) -> Vec<&str> {
    let left_out = plan.left_out.iter();
    left_out.map(|missing| missing.what.as_str()).collect()
}

#[test]
fn a_cpu_gets_the_small_models() {
    let plan = Plan::new(&request(), &available(&[BackendKind::Flex], None));
    let expected = [
        "ViT-S/16, batch 1: Burn 0.21, flex, plain #0",
        "ViT-S/16, batch 1: Burn 0.21, flex, release #0",
        "ViT-S/16, batch 1: PyTorch, cpu, hook #0",
        "GPT small, batch 1: Burn 0.21, flex, plain #0",
        "GPT small, batch 1: Burn 0.21, flex, release #0",
        "GPT small, batch 1: PyTorch, cpu, hook #0",
        "ViT-S/16, batch 8: Burn 0.21, flex, plain #0",
        "ViT-S/16, batch 8: Burn 0.21, flex, release #0",
        "ViT-S/16, batch 8: PyTorch, cpu, hook #0",
        "vocabulary of GPT small, flex",
    ];
    assert_eq!(lines(&plan), expected);
    assert_eq!(what(&plan), ["the large models (ViT-L/16, GPT large)"]);
}

#[test]
fn only_the_first_gpu_backend_has_pytorch_and_the_vocabulary() {
    let request = Request {
        kinds: vec![Kind::Vit],
        batch_sizes: vec![1],
        modes: vec![Mode::Release],
        ..request()
    };
    let gpus = available(&[BackendKind::Cuda, BackendKind::Wgpu], None);
    let plan = Plan::new(&request, &gpus);
    let expected = [
        "ViT-L/16, batch 1: Burn 0.21, cuda, release #0",
        "ViT-L/16, batch 1: PyTorch, cuda, hook #0",
        "vocabulary of GPT large, cuda",
        "ViT-L/16, batch 1: Burn 0.21, cuda, no fusion, release #0",
        "ViT-L/16, batch 1: Burn 0.21, wgpu, release #0",
        "ViT-L/16, batch 1: Burn 0.21, wgpu, no fusion, release #0",
    ];
    assert_eq!(lines(&plan), expected);
    assert!(plan.left_out.is_empty());

    let unfused = Request {
        fusion: vec![false],
        ..request
    };
    let expected = [
        "ViT-L/16, batch 1: Burn 0.21, cuda, no fusion, release #0",
        "ViT-L/16, batch 1: PyTorch, cuda, hook #0",
        "ViT-L/16, batch 1: Burn 0.21, wgpu, no fusion, release #0",
    ];
    assert_eq!(lines(&Plan::new(&unfused, &gpus)), expected);
}

#[test]
fn modes_take_turns_to_and_fro_and_timelines_follow() {
    let request = Request {
        kinds: vec![Kind::Vit],
        vocabulary: false,
        sizes: Sizes {
            image: Some(16),
            ..Sizes::default()
        },
        batch_sizes: vec![4],
        modes: vec![Mode::Plain, Mode::Ideal],
        checkpointing: vec![Checkpointing::None, Checkpointing::Balanced],
        timelines: Some("timelines".into()),
        settings: Settings {
            repeat: 2,
            ..request().settings
        },
        ..tiny()
    };
    let plan = Plan::new(&request, &available(&[BackendKind::Flex], None));
    let run = |mode: &str| format!("ViT tiny at 16x16, batch 4: Burn 0.21, flex, {mode}");
    let modes = ["plain", "ideal", "plain, balanced", "ideal, balanced"];
    let repetition = |index| modes.map(|mode| format!("{} #{index}", run(mode))).to_vec();
    let reversed = |index| repetition(index).into_iter().rev().collect();
    // The floor cannot be recorded.
    let recorded = ["plain", "plain, balanced"].map(|mode| format!("record {}", run(mode)));
    assert_eq!(
        lines(&plan),
        [repetition(0), reversed(1), recorded.to_vec()].concat()
    );
}

#[test]
fn what_cannot_be_combined_is_left_out_once() {
    let request = Request {
        vocabulary: false,
        modes: vec![Mode::Plain, Mode::Release, Mode::Unarmed, Mode::Ideal],
        checkpointing: vec![Checkpointing::Blocks, Checkpointing::Automatic],
        ..tiny()
    };
    let plan = Plan::new(&request, &available(&[BackendKind::Flex], None));
    let modes = [
        "release, blocks",
        "unarmed, blocks",
        "ideal, blocks",
        "release, automatic",
        "ideal, automatic",
    ];
    let runs =
        |model: &str| modes.map(|mode| format!("{model}, batch 1: Burn 0.21, flex, {mode} #0"));
    assert_eq!(lines(&plan), [runs("ViT tiny"), runs("GPT tiny")].concat());
    let expected = [
        "Burn 0.21: plain, blocks",
        "Burn 0.21: plain, automatic",
        "Burn 0.21: unarmed, automatic",
    ];
    assert_eq!(what(&plan), expected);
}

#[test]
fn the_encoder_is_measured_at_its_batch_size() {
    let request = Request {
        kinds: vec![Kind::Encoder],
        vocabulary: false,
        preset: Some(Preset::Small),
        modes: vec![Mode::Release],
        checkpointing: vec![Checkpointing::None, Checkpointing::Blocks],
        torch_modes: vec![TorchMode::Checkpoint, TorchMode::HookCheckpoint],
        ..request()
    };
    let plan = Plan::new(&request, &available(&[BackendKind::Flex], None));
    let run = |subject: &str| format!("Encoder of burn#5212, batch 6: {subject} #0");
    let expected = [
        run("Burn 0.21, flex, release"),
        run("Burn 0.21, flex, release, blocks"),
        run("PyTorch, cpu, checkpoint"),
        run("PyTorch, cpu, hook-checkpoint"),
    ];
    assert_eq!(lines(&plan), expected);
    assert!(plan.left_out.is_empty());
}

#[test]
fn modes_of_one_arithmetic_are_neighbours() {
    let chunk = LossChunk(NonZeroUsize::new(512));
    let request = Request {
        linear: vec![LinearGradient::Default, LinearGradient::Flat],
        loss_chunks: vec![LossChunk::WHOLE, chunk],
        timelines: Some("timelines".into()),
        ..tiny()
    };
    let plan = Plan::new(&request, &available(&[BackendKind::Flex], None));
    let lines = lines(&plan);
    let of = |start: &str| -> Vec<&str> {
        let with = lines.iter().filter_map(|line| line.strip_prefix(start));
        with.collect()
    };
    let expected = [
        "plain #0",
        "release #0",
        "plain, flat linear #0",
        "release, flat linear #0",
    ];
    assert_eq!(of("ViT tiny, batch 1: Burn 0.21, flex, "), expected);
    let expected = [
        "plain #0",
        "release #0",
        "plain, loss chunk 512 #0",
        "release, loss chunk 512 #0",
        "plain, flat linear #0",
        "release, flat linear #0",
        "plain, flat linear, loss chunk 512 #0",
        "release, flat linear, loss chunk 512 #0",
    ];
    assert_eq!(of("GPT tiny, batch 1: Burn 0.21, flex, "), expected);
    let expected = [
        "",
        ", loss chunk 512",
        ", flat linear",
        ", flat linear, loss chunk 512",
    ];
    assert_eq!(of("vocabulary of GPT tiny, flex"), expected);
    // Each run has a timeline.
    assert_eq!(of("record ").len(), 4 + 8);
    assert_eq!(what(&plan), ["ViT tiny: loss chunk 512"]);

    let on_gpu = Request {
        linear: vec![LinearGradient::Flat],
        ..request
    };
    let plan = Plan::new(&on_gpu, &available(&[BackendKind::Wgpu], None));
    assert!(plan.tasks.is_empty());
    assert_eq!(what(&plan), ["Burn 0.21, wgpu: flat linear"]);
}

#[test]
fn lean_operations_are_for_burn_0_22() {
    for (kind, name, case) in [
        (Kind::Encoder, "Encoder tiny", "Encoder tiny, batch 6"),
        (Kind::Gpt, "GPT tiny", "GPT tiny, batch 1"),
    ] {
        let request = Request {
            kinds: vec![kind],
            vocabulary: false,
            // Those of the model.
            batch_sizes: Vec::new(),
            burns: vec![BurnVersion::V0_21, BurnVersion::V0_22],
            modes: vec![Mode::Release],
            operations: vec![Operations::Default, Operations::Lean],
            loss_chunks: vec![LossChunk::WHOLE, LossChunk(NonZeroUsize::new(64))],
            ..tiny()
        };
        let plan = Plan::new(&request, &available(&[BackendKind::Flex], None));
        assert_eq!(
            lines(&plan),
            [
                "Burn 0.21, flex, release",
                "Burn 0.21, flex, release, loss chunk 64",
                "Burn 0.22, flex, release",
                "Burn 0.22, flex, release, loss chunk 64",
                "Burn 0.22, flex, release, lean operations",
            ]
            .map(|run| format!("{case}: {run} #0"))
        );
        let expected = [
            "Burn 0.21: lean operations".into(),
            format!("{name}, lean operations: loss chunk 64"),
        ];
        assert_eq!(what(&plan), expected);
    }
}

#[test]
fn the_decoder_has_the_requested_sizes() {
    let request = Request {
        preset: Some(Preset::Small),
        sizes: Sizes {
            vocabulary: Some(32_000),
            context: Some(512),
            ..Sizes::default()
        },
        batch_sizes: vec![8],
        burns: vec![BurnVersion::V0_21, BurnVersion::V0_22],
        modes: vec![Mode::Release],
        ..request()
    };
    let plan = Plan::new(&request, &available(&[BackendKind::Flex], None));
    let expected = [
        "ViT-S/16, batch 8: Burn 0.21, flex, release #0",
        "ViT-S/16, batch 8: Burn 0.22, flex, release #0",
        "ViT-S/16, batch 8: PyTorch, cpu, hook #0",
        "GPT small, vocabulary 32000, context 512, batch 8: Burn 0.21, flex, release #0",
        "GPT small, vocabulary 32000, context 512, batch 8: Burn 0.22, flex, release #0",
        "GPT small, vocabulary 32000, context 512, batch 8: PyTorch, cpu, hook #0",
        // The search names the vocabularies that it tries.
        "vocabulary of GPT small, context 512, flex",
    ];
    assert_eq!(lines(&plan), expected);
    let mut sizes = plan.tasks.iter().filter_map(|task| match task {
        Task::Measure {
            case: Case {
                model: Shape::Gpt(config),
                ..
            },
            ..
        } => Some(config),
        Task::SearchVocabulary { preset, .. } => Some(preset),
        _ => None,
    });
    assert!(sizes.all(|config| (config.vocabulary, config.context) == (32_000, 512)));
    assert!(plan.left_out.is_empty());
}

#[test]
fn what_cannot_be_recorded_is_left_out_once() {
    let request = Request {
        timelines: Some("timelines".into()),
        ..request()
    };
    let plan = Plan::new(&request, &available(&[BackendKind::Cuda], None));
    assert_eq!(what(&plan), ["memory timelines: Burn 0.21, cuda"]);
    let lines = lines(&plan);
    let mut recorded = lines.iter().filter(|line| line.starts_with("record"));
    assert!(recorded.clone().count() > 0);
    assert!(recorded.all(|line| line.contains("no fusion")), "{lines:?}");
}

#[test]
fn packages_of_python_are_measured_where_they_are_installed() {
    let request = Request {
        torch_modes: vec![TorchMode::Hook, TorchMode::Optimi, TorchMode::Torchao8bit],
        ..request()
    };
    let has = |plan: &Plan, name| lines(plan).iter().any(|line| line.contains(name));
    let with = Plan::new(&request, &available(&[BackendKind::Cuda], Some("1")));
    assert!(has(&with, "optimi") && has(&with, "torchao-8bit") && with.left_out.is_empty());
    let without = Plan::new(&request, &available(&[BackendKind::Cuda], None));
    assert!(has(&without, "hook") && !has(&without, "optimi") && !has(&without, "torchao"));
    assert_eq!(what(&without), ["optimi", "torchao-8bit"]);
    assert!(without.left_out[1].why.contains("pip install torchao"));

    let no_pytorch = Available {
        pytorch: Err("--no-pytorch".into()),
        ..available(&[BackendKind::Cuda], None)
    };
    let plan = Plan::new(&request, &no_pytorch);
    assert_eq!(
        plan.left_out,
        [LeftOut::new("PyTorch and optimi", "--no-pytorch")]
    );
    assert!(!lines(&plan).iter().any(|line| line.contains("PyTorch")));
}

#[test]
fn what_cannot_be_recorded_has_a_way_out() {
    let run = |backend, fusion| Subject::Burn {
        burn: BurnVersion::V0_21,
        backend,
        fusion,
        mode: Mode::Release,
        checkpointing: Checkpointing::None,
        arithmetic: Arithmetic::default(),
    };
    can_record(&run(BackendKind::Flex, true)).unwrap();
    can_record(&run(BackendKind::Cuda, false)).unwrap();
    let missing = can_record(&run(BackendKind::Cuda, true)).unwrap_err();
    assert!(missing.why.ends_with("choose --fusion off"), "{missing:?}");
}

#[test]
fn time_is_measured_apart_where_counting_costs() {
    let burn = |backend, fusion, mode| Subject::Burn {
        burn: BurnVersion::V0_21,
        backend,
        fusion,
        mode,
        checkpointing: Checkpointing::None,
        arithmetic: Arithmetic::default(),
    };
    let torch = |device: &str| Subject::PyTorch {
        device: device.into(),
        mode: TorchMode::Hook,
    };
    for (subject, is_free) in [
        (burn(BackendKind::Flex, true, Mode::Plain), true),
        (burn(BackendKind::Cuda, true, Mode::Plain), false),
        (burn(BackendKind::Cuda, true, Mode::Ideal), true),
        (burn(BackendKind::Cuda, false, Mode::Plain), true),
        (torch("cpu"), false),
        (torch("cuda"), true),
    ] {
        assert_eq!(counts_for_free(&subject), is_free, "{subject:?}");
    }
}

#[test]
fn optimizers_that_cannot_be_measured_are_left_out() {
    let request = Request {
        optimizers: vec![
            OptimizerKind::Adam,
            OptimizerKind::Adam8bit,
            OptimizerKind::Sgd,
        ],
        ..tiny()
    };
    let of = |backend: BackendKind| {
        let plan = Plan::new(&request, &available(&[backend], None));
        let lines = lines(&plan);
        let adam = |line: &&String| line.contains("ViT tiny") && line.contains("plain");
        let measured: Vec<String> = lines.iter().filter(adam).cloned().collect();
        (measured, what(&plan).join("; "))
    };
    let (measured, left_out) = of(BackendKind::Flex);
    assert_eq!(measured.len(), 2, "{measured:?}");
    assert!(measured[1].contains("adam-8bit"), "{measured:?}");
    assert!(left_out.contains("Burn 0.21, flex: sgd"), "{left_out}");
    assert!(!left_out.contains("adam-8bit"), "{left_out}");
    let (measured, _) = of(BackendKind::Cuda);
    assert!(measured.iter().any(|line| line.contains("adam-8bit")));
    let (measured, left_out) = of(BackendKind::NdArray);
    assert!(!measured.iter().any(|line| line.contains("adam-8bit")));
    assert!(
        left_out.contains("Burn 0.21, ndarray: adam-8bit"),
        "{left_out}"
    );
}

#[test]
fn versions_of_burn_stand_beside_each_other() {
    let both = vec![BurnVersion::V0_21, BurnVersion::V0_22];
    let request = Request {
        kinds: vec![Kind::Vit, Kind::Gpt, Kind::Encoder],
        burns: both,
        modes: vec![Mode::Plain, Mode::Release, Mode::Unarmed, Mode::Ideal],
        checkpointing: vec![Checkpointing::Blocks, Checkpointing::Automatic],
        timelines: Some("timelines".into()),
        ..tiny()
    };
    let plan = Plan::new(&request, &available(&[BackendKind::Flex], None));
    let lines = lines(&plan);
    let of = |model: &str| -> Vec<&str> {
        let with = lines.iter().filter_map(|line| line.strip_prefix(model));
        with.collect()
    };
    for model in ["ViT tiny", "GPT tiny", "Encoder tiny"] {
        let expected = [
            "Burn 0.21, flex, release, blocks #0",
            "Burn 0.21, flex, unarmed, blocks #0",
            "Burn 0.21, flex, ideal, blocks #0",
            "Burn 0.21, flex, release, automatic #0",
            "Burn 0.21, flex, ideal, automatic #0",
            "Burn 0.22, flex, plain, blocks #0",
            "Burn 0.22, flex, release, blocks #0",
        ];
        assert_eq!(of(&format!("{model}, batch 1: ")), expected);
    }
    assert!(of("record ").iter().all(|line| line.contains("Burn 0.21")));
    assert_eq!(of("vocabulary of "), ["GPT tiny, flex"]);
    let expected = [
        "Burn 0.21: plain, blocks",
        "Burn 0.21: plain, automatic",
        "Burn 0.21: unarmed, automatic",
        "Burn 0.22: unarmed, blocks",
        "Burn 0.22: ideal, blocks",
        "Burn 0.22: plain, automatic",
        "Burn 0.22: release, automatic",
        "Burn 0.22: unarmed, automatic",
        "Burn 0.22: ideal, automatic",
        "memory timelines: Burn 0.22, flex",
    ];
    assert_eq!(what(&plan), expected);
}

#[test]
fn what_burn_0_22_lacks_is_left_out() {
    let request = Request {
        kinds: vec![Kind::Vit],
        burns: vec![BurnVersion::V0_22],
        modes: vec![Mode::Release],
        linear: vec![LinearGradient::Default, LinearGradient::Flat],
        optimizers: vec![OptimizerKind::Sgd],
        ..tiny()
    };
    let plan = Plan::new(&request, &available(&[BackendKind::Flex], None));
    assert_eq!(
        lines(&plan),
        ["ViT tiny, batch 1: Burn 0.22, flex, release, sgd #0"]
    );
    let expected = ["Burn 0.22, flex: flat linear", "vocabulary of GPT tiny"];
    assert_eq!(what(&plan), expected);
    let plan = Plan::new(&request, &available(&[BackendKind::Cuda], None));
    assert!(plan.tasks.is_empty());
    assert_eq!(what(&plan), ["Burn 0.22, cuda", "vocabulary of GPT tiny"]);
}
