use super::*;
use crate::cli::Cli;
use clap::Parser;

/// The options of a command line.
fn options(line: &str) -> Options {
    let words = line.split_whitespace();
    Cli::try_parse_from(["benchmarks"].into_iter().chain(words))
        .unwrap()
        .suite
}

fn available(backends: &[BackendKind], packages: Option<&str>) -> Available {
    Available {
        backends: backends.to_vec(),
        missing: Vec::new(),
        fuses: true,
        pytorch: Ok(TorchVersions {
            python: "3".into(),
            torch: "2".into(),
            optimi: packages.map(String::from),
            torchao: packages.map(String::from),
            flashoptim: packages.map(String::from),
            cuda: Some("13".into()),
            gpu: None,
            threads: 1,
        }),
    }
}

/// The plan of a command line on these backends; of PyTorch it has the hook, unless it names others.
fn plan(line: &str, backends: &[BackendKind]) -> Plan {
    let line = match line.contains("--pytorch") {
        true => line.into(),
        false => format!("{line} --pytorch hook"),
    };
    Plan::new(&options(&line), &available(backends, None))
}

/// The runs that are planned on Flex beside each other, each in one line, without PyTorch.
fn on_flex(line: &str) -> (Vec<String>, Plan) {
    let mut plan = plan(line, &[BackendKind::Flex]);
    plan.tasks
        .retain(|task| matches!(task.subject, Subject::Burn(_)));
    (lines(&plan), plan)
}

/// The tasks of a plan, each in one line.
fn lines(plan: &Plan) -> Vec<String> {
    let tasks = plan.tasks.iter();
    let line = |task: &Task| format!("{} #{}", task.case.with(&task.subject), task.repetition);
    tasks.map(line).collect()
}

fn what(plan: &Plan) -> Vec<&str> {
    let left_out = plan.left_out.iter();
    left_out.map(|missing| missing.what.as_str()).collect()
}

#[test]
fn a_cpu_gets_the_small_models() {
    let plan = plan("--burn 0.21 --checkpointing none", &[BackendKind::Flex]);
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
    ];
    assert_eq!(lines(&plan), expected);
    assert_eq!(what(&plan), ["the large models (ViT-L/16, GPT large)"]);
}

#[test]
fn only_the_first_gpu_backend_has_pytorch() {
    let gpus = [BackendKind::Cuda, BackendKind::Wgpu];
    let line = "--part vit --batch-size 1 --burn 0.21 --mode release --checkpointing none";
    let both = plan(line, &gpus);
    let expected = [
        "ViT-L/16, batch 1: Burn 0.21, cuda, release #0",
        "ViT-L/16, batch 1: PyTorch, cuda, hook #0",
        "ViT-L/16, batch 1: Burn 0.21, cuda, no fusion, release #0",
        "ViT-L/16, batch 1: Burn 0.21, wgpu, release #0",
        "ViT-L/16, batch 1: Burn 0.21, wgpu, no fusion, release #0",
    ];
    assert_eq!(lines(&both), expected);
    assert!(both.left_out.is_empty());
    let unfused = plan(&format!("{line} --fusion off"), &gpus);
    let expected = [
        "ViT-L/16, batch 1: Burn 0.21, cuda, no fusion, release #0",
        "ViT-L/16, batch 1: PyTorch, cuda, hook #0",
        "ViT-L/16, batch 1: Burn 0.21, wgpu, no fusion, release #0",
    ];
    assert_eq!(lines(&unfused), expected);
}

#[test]
fn modes_take_turns_to_and_fro() {
    let (lines, _) = on_flex(
        "--preset tiny --part vit --batch-size 4 --burn 0.21 --mode plain,ideal --repeat 2",
    );
    let modes = ["plain", "ideal", "plain, balanced", "ideal, balanced"];
    let run = |mode: &str, index| format!("ViT tiny, batch 4: Burn 0.21, flex, {mode} #{index}");
    let mut expected = modes.map(|mode| run(mode, 0)).to_vec();
    expected.extend(modes.into_iter().rev().map(|mode| run(mode, 1)));
    assert_eq!(lines, expected);
}

#[test]
fn what_cannot_be_combined_is_left_out_once() {
    let line = "--preset tiny --batch-size 1 --part vit,gpt,encoder --checkpointing blocks,automatic \
                --mode plain,release,unarmed,ideal";
    let (lines, plan) = on_flex(line);
    let expected = ["ViT tiny", "GPT tiny", "Encoder tiny"].map(|model| {
        [
            "Burn 0.21, flex, release, blocks",
            "Burn 0.21, flex, unarmed, blocks",
            "Burn 0.21, flex, ideal, blocks",
            "Burn 0.21, flex, release, automatic",
            "Burn 0.21, flex, ideal, automatic",
            "Burn 0.22, flex, plain, blocks",
            "Burn 0.22, flex, release, blocks",
        ]
        .map(|run| format!("{model}, batch 1: {run} #0"))
    });
    assert_eq!(lines, expected.concat());
    let expected = [
        "Burn 0.21: plain, blocks",
        "Burn 0.21: plain, automatic",
        "Burn 0.21: unarmed, automatic",
        "Burn 0.22: unarmed",
        "Burn 0.22: ideal",
        "Burn 0.22: automatic",
    ];
    assert_eq!(what(&plan), expected);
}

#[test]
fn modes_of_one_arithmetic_are_neighbours() {
    let line = "--preset tiny --part vit,gpt --batch-size 1 --burn 0.21 --checkpointing none \
                --linear default,flat --loss-chunk whole,512";
    let (lines, plan) = on_flex(line);
    let expected = [
        "ViT tiny, batch 1: Burn 0.21, flex, plain #0",
        "ViT tiny, batch 1: Burn 0.21, flex, release #0",
        "ViT tiny, batch 1: Burn 0.21, flex, plain, flat linear #0",
        "ViT tiny, batch 1: Burn 0.21, flex, release, flat linear #0",
        "GPT tiny, batch 1: Burn 0.21, flex, plain #0",
        "GPT tiny, batch 1: Burn 0.21, flex, release #0",
        "GPT tiny, batch 1: Burn 0.21, flex, plain, loss chunk 512 #0",
        "GPT tiny, batch 1: Burn 0.21, flex, release, loss chunk 512 #0",
        "GPT tiny, batch 1: Burn 0.21, flex, plain, flat linear #0",
        "GPT tiny, batch 1: Burn 0.21, flex, release, flat linear #0",
        "GPT tiny, batch 1: Burn 0.21, flex, plain, flat linear, loss chunk 512 #0",
        "GPT tiny, batch 1: Burn 0.21, flex, release, flat linear, loss chunk 512 #0",
    ];
    assert_eq!(lines, expected);
    assert_eq!(what(&plan), ["Burn 0.21: ViT tiny, loss chunk 512"]);
}

#[test]
fn lean_operations_are_for_burn_0_22() {
    for (part, case) in [
        ("encoder", "Encoder tiny, batch 6"),
        ("gpt", "GPT tiny, batch 1"),
    ] {
        let line = "--preset tiny --mode release --checkpointing none --operations default,lean \
                    --loss-chunk whole,64 --part";
        let (lines, plan) = on_flex(&format!("{line} {part}"));
        let expected = [
            "Burn 0.21, flex, release",
            "Burn 0.21, flex, release, loss chunk 64",
            "Burn 0.22, flex, release",
            "Burn 0.22, flex, release, loss chunk 64",
            "Burn 0.22, flex, release, lean operations",
        ];
        assert_eq!(lines, expected.map(|run| format!("{case}: {run} #0")));
        let name = case.split(',').next().unwrap();
        let expected = [
            "Burn 0.21: lean operations".into(),
            format!("Burn 0.22: {name}, loss chunk 64, lean operations"),
        ];
        assert_eq!(what(&plan), expected);
    }
}

#[test]
fn the_decoder_has_the_sizes_of_the_command_line() {
    let line = "--preset small --part vit,gpt --batch-size 8 --burn 0.22 --mode release \
                --checkpointing none --vocabulary 32000,64000 --context 512";
    let plan = plan(line, &[BackendKind::Flex]);
    let expected = [
        "ViT-S/16, batch 8: Burn 0.22, flex, release #0",
        "ViT-S/16, batch 8: PyTorch, cpu, hook #0",
        "GPT small, vocabulary 32000, context 512, batch 8: Burn 0.22, flex, release #0",
        "GPT small, vocabulary 32000, context 512, batch 8: PyTorch, cpu, hook #0",
        "GPT small, vocabulary 64000, context 512, batch 8: Burn 0.22, flex, release #0",
        "GPT small, vocabulary 64000, context 512, batch 8: PyTorch, cpu, hook #0",
    ];
    assert_eq!(lines(&plan), expected);
    assert!(plan.left_out.is_empty());
}

#[test]
fn packages_of_python_are_measured_where_they_are_installed() {
    let line = "--burn 0.21 --part vit --pytorch hook,optimi,torchao-8bit,flashoptim";
    let torch = |plan: &Plan| {
        let lines = lines(plan).into_iter();
        lines.filter(|line| line.contains("PyTorch")).count()
    };
    let all = Plan::new(&options(line), &available(&[BackendKind::Cuda], Some("1")));
    assert!(torch(&all) == 2 * 4 && all.left_out.is_empty());
    let without = plan(line, &[BackendKind::Cuda]);
    assert_eq!(torch(&without), 2);
    assert_eq!(what(&without), ["optimi", "torchao-8bit", "flashoptim"]);
    assert!(without.left_out[1].why.contains("pip install torchao"));
    let no_pytorch = Available {
        pytorch: Err("--no-pytorch".into()),
        ..available(&[BackendKind::Cuda], None)
    };
    let plan = Plan::new(&options(line), &no_pytorch);
    let missing = LeftOut::new("PyTorch and optimi", "--no-pytorch");
    assert_eq!(plan.left_out, [missing]);
    assert_eq!(torch(&plan), 0);
}

#[test]
fn time_is_measured_apart_where_counting_costs() {
    let free = |line: &str, backend| -> Vec<bool> {
        let plan = plan(&format!("{line} --part vit --batch-size 1"), &[backend]);
        let tasks = plan.tasks.iter();
        tasks.map(|task| task.subject.counts_for_free()).collect()
    };
    let line = "--burn 0.21 --checkpointing none --mode plain,ideal";
    // Two of Burn, PyTorch, and on a GPU two of Burn without fusion.
    assert_eq!(free(line, BackendKind::Flex), [true, true, false]);
    let on_gpu = free(line, BackendKind::Cuda);
    assert_eq!(on_gpu, [false, true, true, true, true]);
    let line = "--burn 0.22 --checkpointing none --mode plain";
    assert_eq!(free(line, BackendKind::Cuda), [false, true]);
}

#[test]
fn each_version_of_burn_has_its_optimizers_and_backends() {
    let line = "--preset tiny --part vit --batch-size 1 --mode release --checkpointing none \
                --linear default,flat --optimizer adam-8bit,sgd";
    let (lines, on_flex) = on_flex(line);
    let expected = [
        "Burn 0.21, flex, release, adam-8bit",
        "Burn 0.21, flex, release, flat linear, adam-8bit",
        "Burn 0.22, flex, release, adam-8bit",
        "Burn 0.22, flex, release, sgd",
    ];
    let expected = expected.map(|run| format!("ViT tiny, batch 1: {run} #0"));
    assert_eq!(lines, expected);
    assert_eq!(what(&on_flex), ["Burn 0.21: sgd", "Burn 0.22: flat linear"]);

    let line = format!("{line} --burn 0.22 --pools default,size-match");
    let mut on_gpu = plan(&line, &[BackendKind::Cuda]);
    on_gpu
        .tasks
        .retain(|task| matches!(task.subject, Subject::Burn(_)));
    let expected = ["adam-8bit", "sgd"].map(|optimizer| {
        ["release", "release, pools size-match"]
            .map(|mode| format!("ViT tiny, batch 1: Burn 0.22, cuda, {mode}, {optimizer} #0"))
    });
    assert_eq!(self::lines(&on_gpu), expected.concat());
    let expected = ["Burn 0.22: flat linear", "Burn 0.22: cuda without fusion"];
    assert_eq!(what(&on_gpu), expected);
    let unfused = Available {
        fuses: false,
        ..available(&[BackendKind::Cuda], None)
    };
    let unfused = Plan::new(&options("--burn 0.22 --no-pytorch --part vit"), &unfused);
    assert!(what(&unfused).contains(&"Burn 0.22: cuda with fusion"));
    let is_unfused = |task: &Task| task.subject.place() == "Burn 0.22, cuda, no fusion";
    let of_burn = |task: &&Task| matches!(task.subject, Subject::Burn(_));
    assert!(unfused.tasks.iter().filter(of_burn).all(is_unfused));
}
