//! Texts, conversations, and the program from end to end.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use burn::module::ParamGroup;
use burn::store::{ModuleStore, SafetensorsStore, bridge};
use burn::tensor::Device;
use burn_lean::MixedPrecision;
use burn_lean::operations::Nf4;
use burn_lean::safetensors::save;
use finetune::config::ModelConfig;
use finetune::model::Batch;
use lean_text::Text;
use tempfile::TempDir;

const WORDS: [&str; 10] = [
    "?",
    "[user]",
    "[assistant]",
    "[end]",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
];

const TEMPLATE: &str = "{% for message in messages %}[{{ message['role'] }}] \
    {{ message['content'].strip() }} [end] {% endfor %}\
    {% if add_generation_prompt %}[assistant] {% endif %}";

/// A copy of a reference, with a tokenizer of these words and a chat template.
fn model(name: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(reference.join(name).join(file), folder.path().join(file)).unwrap();
    }
    write_tokenizer(folder.path(), WORDS.iter().copied());
    fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    folder
}

fn write_tokenizer<'a>(folder: &Path, words: impl Iterator<Item = &'a str>) {
    let vocabulary: serde_json::Map<_, _> = words
        .enumerate()
        .map(|(id, word)| (word.to_owned(), id.into()))
        .collect();
    let tokenizer = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": { "type": "WhitespaceSplit" },
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "?" },
    });
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

#[test]
fn padding_changes_no_loss() {
    let folder = model("llama");
    let device = Device::flex();
    let config = ModelConfig::open(folder.path()).unwrap();
    let weights = finetune::model::open(folder.path()).unwrap();
    let model = weights.load(config.init(24, &device), str::to_owned);
    let model = model.unwrap();
    let text = |tokens: &[u32]| Text {
        tokens: tokens.to_vec(),
        counts: vec![true; tokens.len()],
    };
    let texts = [&text(&[4, 5, 6, 7, 8]), &text(&[9, 8])];
    let loss = |texts: &[&Text]| model.loss(Batch::new(texts, &device)).into_scalar::<f32>();
    // Of four tokens and of one.
    let expected = (4.0 * loss(&texts[..1]) + loss(&texts[1..])) / 5.0;
    assert!((loss(&texts) - expected).abs() < 1e-5);
}

fn command(folder: &Path, output: &str, options: &[&str]) -> Command {
    let text = folder.join("text.txt");
    if !text.exists() {
        fs::write(&text, "one two three four five six ".repeat(20)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_finetune"));
    command
        .args([folder, &text])
        .args(["--output", output, "--context", "12"])
        .args(options)
        .current_dir(folder);
    command
}

fn run(folder: &Path, output: &str, options: &[&str]) -> Output {
    command(folder, output, options).output().unwrap()
}

/// What a program has said that went well.
fn done(output: Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).unwrap()
}

/// What a program has said that did not, with its exit code.
fn refused(output: Output) -> (String, Option<i32>) {
    assert!(!output.status.success());
    (
        String::from_utf8(output.stderr).unwrap(),
        output.status.code(),
    )
}

fn numbers(file: &Path) -> Vec<(String, Vec<f32>)> {
    let mut store = SafetensorsStore::from_file(file);
    let tensors = store.get_all_tensors().unwrap().iter();
    let of = |(name, tensor): (&String, _)| {
        (
            name.clone(),
            bridge::to_data(tensor).unwrap().iter::<f32>().collect(),
        )
    };
    tensors.map(of).collect()
}

#[test]
fn a_rate_of_zero_changes_no_bit() {
    // Of a file in f32, and of one in bf16.
    for name in ["llama", "qwen3"] {
        let folder = model(name);
        let path = folder.path();
        done(run(path, "new", &["--steps", "2", "--rate", "0"]));
        let [old, new] = ["model.safetensors", "new/model.safetensors"].map(|it| path.join(it));
        assert_eq!(numbers(&new), numbers(&old), "{name}");
        for file in ["config.json", "tokenizer.json", "chat_template.jinja"] {
            assert_eq!(
                fs::read(path.join("new").join(file)).unwrap(),
                fs::read(path.join(file)).unwrap()
            );
        }
    }
}

#[test]
fn each_way_learns_the_text() {
    for (how, file) in [
        ("five-bytes", "model.safetensors"),
        ("lora", "adapter_model.safetensors"),
        ("nf4", "adapter_model.safetensors"),
    ] {
        let folder = model("llama");
        let path = folder.path();
        let options = [
            "--how",
            how,
            "--steps",
            "30",
            "--rate",
            "1e-2",
            "--validation",
            "text.txt",
        ];
        let said = done(run(path, "new", &options));
        let losses: Vec<f32> = said
            .lines()
            .filter_map(|line| line.strip_prefix("validation: ")?.parse().ok())
            .collect();
        println!("{how}: {losses:?}");
        assert!(losses[1] < 0.5 * losses[0], "{how}: {losses:?}");
        assert!(said.contains("of memory"), "{said}");
        // The same with weights and states in a file.
        let scratch = ["--scratch", env!("CARGO_TARGET_TMPDIR"), "--memory", "1"];
        let options = [&options[..], &scratch].concat();
        let said = done(run(path, "placed", &options));
        assert!(said.contains("MiB of the disk of"), "{said}");
        let [new, placed] = ["new", "placed"].map(|it| fs::read(path.join(it).join(file)).unwrap());
        assert!(new == placed, "{how}");
    }
}

#[test]
fn a_model_that_bitsandbytes_has_packed_learns_as_the_one_that_is_packed_here() {
    // Its weights are in bf16 in the file, as both read them.
    let folder = model("qwen3");
    let path = folder.path();
    let config = ModelConfig::open(path).unwrap();
    let weights = finetune::model::open(path).unwrap();
    let weights = weights.with_precision(MixedPrecision::bf16());
    let dense = weights.load(config.init(24, &Device::flex()), str::to_owned);
    let layers = ParamGroup::from_predicate("layers");
    let packed = Nf4::new().with_group(layers).pack(dense.unwrap()).unwrap();
    let of_packed = model("qwen3");
    let file = of_packed.path().join("model.safetensors");
    save(&packed, file, str::to_owned, |_, dtype| dtype).unwrap();
    let config = of_packed.path().join("config.json");
    let mut fields: serde_json::Value =
        serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    fields["quantization_config"] = serde_json::json!({
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": true,
        "load_in_4bit": true,
        "quant_method": "bitsandbytes",
    });
    fs::write(&config, fields.to_string()).unwrap();

    let said = refused(run(of_packed.path(), "new", &["--steps", "1"])).0;
    assert!(said.contains("with --how nf4"), "{said}");
    let scratch = path.join("scratch");
    fs::create_dir(&scratch).unwrap();
    let scratch = ["--scratch", scratch.to_str().unwrap()];
    let mut adapters = Vec::new();
    for (path, options) in [
        (path, &[][..]),
        (of_packed.path(), &[]),
        (of_packed.path(), &scratch),
    ] {
        let output = format!("new{}", adapters.len());
        let how = [&["--how", "nf4", "--steps", "3"], options].concat();
        done(run(path, &output, &how));
        adapters.push(fs::read(path.join(output).join("adapter_model.safetensors")).unwrap());
    }
    assert!(adapters[0] == adapters[1] && adapters[1] == adapters[2]);
}

#[test]
fn a_folder_that_is_there_is_left_alone() {
    let folder = model("llama");
    fs::create_dir(folder.path().join("new")).unwrap();
    let (error, _) = refused(run(folder.path(), "new", &["--steps", "1"]));
    assert!(
        error.contains("new is there: choose a new folder"),
        "{error}"
    );
    assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 0);
    let (error, _) = refused(run(folder.path(), "new", &["--resume"]));
    assert!(error.contains("nothing to resume"), "{error}");
}

/// Steps of checkpoints, of which the newest may not be complete.
fn checkpoints(output: &Path) -> Vec<usize> {
    let Ok(files) = fs::read_dir(output.join("training/checkpoint")) else {
        return Vec::new();
    };
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let step = |name: String| {
        name.strip_prefix("states-")?
            .strip_suffix(".bpk")?
            .parse()
            .ok()
    };
    names.filter_map(step).collect()
}

/// With weights in f32 and all of them trained, and with adapters over weights in bf16.
#[test]
fn a_training_that_was_killed_goes_on_as_if_it_was_not() {
    for (name, how, file) in [
        ("llama", "five-bytes", "model.safetensors"),
        ("qwen3", "lora", "adapter_model.safetensors"),
    ] {
        let folder = model(name);
        let path = folder.path();
        let options = [
            "--how",
            how,
            "--batch",
            "2",
            "--rate",
            "1e-2",
            "--save-every",
            "2",
        ];
        let with = |more: &[&'static str]| [&options[..], more].concat();
        let killed = with(&["--steps", "1000000"]);
        let mut killed = command(path, "new", &killed)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while checkpoints(&path.join("new")).is_empty() {
            assert!(killed.try_wait().unwrap().is_none(), "it ended");
            thread::sleep(Duration::from_millis(2));
        }
        let (second, _) = refused(run(path, "new", &with(&["--resume"])));
        assert!(second.contains("another program"), "{second}");
        killed.kill().unwrap();
        killed.wait().unwrap();
        let steps = checkpoints(&path.join("new")).into_iter().max().unwrap() + 3;
        let steps = ["--steps", &*steps.to_string().leak()];

        let resume = with(&[&steps[..], &["--resume"]].concat());
        let text = fs::read_to_string(path.join("text.txt")).unwrap();
        fs::write(path.join("text.txt"), format!("{text} one")).unwrap();
        let (other, _) = refused(run(path, "new", &resume));
        assert!(
            other.contains("is not what the training began with"),
            "{other}"
        );
        fs::write(path.join("text.txt"), text).unwrap();
        let weights = path.join("model.safetensors");
        let of_before = fs::read(&weights).unwrap();
        let mut of_others = of_before.clone();
        *of_others.last_mut().unwrap() ^= 1;
        fs::write(&weights, of_others).unwrap();
        let (other, _) = refused(run(path, "new", &resume));
        let name = "model.safetensors is not what the training began with";
        assert!(other.contains(name), "{other}");
        fs::write(&weights, of_before).unwrap();
        let (other, _) = refused(run(path, "new", &with(&["--resume", "--seed", "7"])));
        assert!(
            other.contains("the run to resume has --seed 42, not 7"),
            "{other}"
        );

        // What is learned is not lost if it cannot be written.
        let in_the_way = path.join("new").join(file);
        fs::create_dir(&in_the_way).unwrap();
        let (full, code) = refused(run(path, "new", &resume));
        let way_out = format!("make room, and --resume goes on after step {}", steps[1]);
        assert!(full.contains(&way_out) && full.contains(file), "{full}");
        assert_eq!(code, Some(74));
        fs::remove_dir(&in_the_way).unwrap();

        // Settings are kept: they need not be told again.
        let steps_alone = [&steps[..], &["--resume"]].concat();
        let said = done(run(path, "new", &steps_alone));
        let goes_on = format!("going on after step {}", steps[1]);
        assert!(said.contains(&goes_on) && !said.contains("loss"), "{said}");
        done(run(path, "whole", &with(&steps)));
        let [found, expected] =
            ["new", "whole"].map(|it| fs::read(path.join(it).join(file)).unwrap());
        assert!(found == expected, "{how}: other weights");
        assert!(checkpoints(&path.join("new")).is_empty());
        let (over, _) = refused(run(path, "new", &with(&["--resume"])));
        assert!(over.contains("is over"), "{over}");
    }
}

/// A limit of the size of a file stands for a disk that is full.
#[cfg(unix)]
#[test]
fn a_full_disk_takes_no_checkpoint_away() {
    let folder = model("llama");
    let path = folder.path();
    let options = ["--steps", "5", "--save-every", "2", "--rate", "1e-2"];
    let program = command(path, "new", &options);
    // In blocks of 512 bytes.
    let limited = r#"trap "" XFSZ; ulimit -f 40; exec "$@""#;
    let mut limited_program = Command::new("sh");
    limited_program
        .args(["-c", limited, "sh"])
        .arg(program.get_program());
    let limited = limited_program
        .args(program.get_args())
        .current_dir(path)
        .output();
    let (error, code) = refused(limited.unwrap());
    assert!(
        error.contains("make room, and --resume goes on after step 0"),
        "{error}"
    );
    assert_eq!(code, Some(74), "{error}");
    assert!(checkpoints(&path.join("new")).is_empty());
    done(run(path, "new", &[&options[..], &["--resume"]].concat()));
    done(run(path, "whole", &options));
    let [found, expected] =
        ["new", "whole"].map(|it| fs::read(path.join(it).join("model.safetensors")).unwrap());
    assert!(found == expected);
}
