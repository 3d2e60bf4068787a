//! Commands of the pages and of the heads of programs: what they name is there.

#[path = "../../commands.rs"]
mod told;

use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::process::Command;
use told::{Told, files, root, told};

/// Programs whose tests have them read the options of their commands.
const PARSED: [&str; 5] = [
    "benchmarks",
    "burn-memory",
    "lean-timeline",
    "vit",
    "vit-0-21",
];

/// Programs with arguments that no test reads, and why.
const NOT_PARSED: [(&str, &str); 10] = [
    ("benchmarks accuracy", "a number; trains for minutes"),
    ("benchmarks clipping", "numbers; measures for minutes"),
    ("benchmarks digits", "numbers; trains for minutes"),
    ("benchmarks operations", "the name of a Python"),
    ("finetune", "names of the reader's own files"),
    ("language-model", "the name of a file"),
    ("language-model precision", "one word; trains for minutes"),
    ("larger-than-memory", "the name of a folder"),
    ("lora", "names and numbers; trains for minutes"),
    ("lora beside_burn", "numbers; measures for minutes"),
];

/// Programs of others.
const NOT_OURS: [&str; 3] = ["export", "sudo", "tar"];

/// The members of the workspace.
struct Members(HashMap<String, Value>);

impl Members {
    fn find() -> Self {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args("metadata --no-deps --offline --locked --format-version 1".split(' '));
        let output = cargo.current_dir(root()).output().unwrap();
        let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
        let packages = metadata["packages"].as_array().unwrap().iter();
        let named = |package: &Value| (text(&package["name"]).to_owned(), package.clone());
        Self(packages.map(named).collect())
    }

    fn get(&self, package: &str) -> Result<&Value, String> {
        self.0.get(package).ok_or(format!("no package {package}"))
    }

    /// The features that are on, each as `package/feature`, with these beside the default ones of
    /// all packages, or of these.
    fn features<'a>(
        &self,
        packages: impl Iterator<Item = &'a str>,
        asked: impl Iterator<Item = String>,
    ) -> HashSet<String> {
        let mut on = HashSet::new();
        let mut next: Vec<_> = asked.collect();
        next.extend(packages.map(|package| format!("{package}/default")));
        while let Some(feature) = next.pop() {
            let (name, of_package) = feature.split_once('/').unwrap();
            let Some(package) = self.0.get(name).filter(|_| on.insert(feature.clone())) else {
                continue;
            };
            for implied in array(&package["features"][of_package]) {
                let implied = text(implied).replace('?', "");
                match implied.contains('/') {
                    true => next.push(implied),
                    false => next.push(format!("{name}/{implied}")),
                }
            }
            // What a member has others built with.
            for needed in array(&package["dependencies"]) {
                let features = array(&needed["features"]).iter();
                let on =
                    features.map(|feature| format!("{}/{}", text(&needed["name"]), text(feature)));
                next.extend(on);
            }
        }
        on
    }

    /// All targets, each with its package.
    fn targets(&self) -> impl Iterator<Item = (&str, &Value)> {
        let of = |package| array(&self.0[package]["targets"]).iter();
        let names = self.0.keys().map(String::as_str);
        names.flat_map(move |package| of(package).map(move |target| (package, target)))
    }

    /// What a call of Cargo asks for and is not there.
    fn check(&self, words: &[String]) -> Result<(), String> {
        match words[1].as_str() {
            "check" | "run" | "test" | "build" | "doc" => {}
            // Of a reader's own workspace.
            "tree" | "install" => return Ok(()),
            other => return Err(format!("cargo {other} is unknown")),
        }
        let (mut packages, mut features, mut targets) = (Vec::new(), Vec::new(), Vec::new());
        let mut filters = Vec::new();
        let mut words_left = words[2..].iter().map(String::as_str);
        while let Some(word) = words_left.next() {
            let mut value = || words_left.next().ok_or(format!("{word} has no value"));
            match word {
                "-p" => packages.push(value()?),
                "--features" => features.extend(value()?.split(',')),
                "--example" | "--test" => targets.push((&word[2..], value()?)),
                "--manifest-path" => {
                    let file = value()?;
                    let is_there = root().join(file).exists();
                    return is_there.then_some(()).ok_or(format!("no file {file}"));
                }
                "--release" | "--doc" | "--open" => {}
                "--" => break,
                _ if word.starts_with('-') => return Err(format!("{word} is unknown")),
                filter => filters.push(filter),
            }
        }
        if words[1] == "test" {
            filters.extend(words_left.filter(|word| word.contains("::")));
        }
        packages.retain(|package| *package != "CRATE");
        for package in &packages {
            let package = self.get(package)?;
            for feature in &features {
                let has = package["features"].get(feature).is_some();
                has.then_some(()).ok_or(format!("no feature {feature}"))?;
            }
        }
        let asked = packages.iter().flat_map(|package| {
            let features = features.iter();
            features.map(move |feature| format!("{package}/{feature}"))
        });
        let on = self.features(packages.iter().copied(), asked);
        for (kind, name) in targets {
            let mut found = self.targets().filter(|(package, target)| {
                let is_it = text(&target["kind"][0]) == kind && text(&target["name"]) == name;
                is_it && packages.contains(package)
            });
            let (package, target) = found.next().ok_or(format!("no {kind} {name}"))?;
            for feature in array(&target["required-features"]) {
                let feature = format!("{package}/{}", text(feature));
                let is_on = on.contains(&feature);
                is_on.then_some(()).ok_or(format!("without {feature}"))?;
            }
        }
        for filter in filters {
            packages
                .iter()
                .try_for_each(|package| self.has_test(package, filter))?;
        }
        Ok(())
    }

    /// Each part of a test's name is a function or a module of the package.
    fn has_test(&self, package: &str, filter: &str) -> Result<(), String> {
        let manifest = text(&self.get(package)?["manifest_path"]);
        let mut found = Vec::new();
        files(
            manifest.strip_suffix("Cargo.toml").unwrap().as_ref(),
            &mut found,
        );
        let sources: Vec<_> = found
            .iter()
            .filter_map(|file| fs::read_to_string(file).ok())
            .collect();
        // A filter ends anywhere in a name, but a part before `::` is a whole one.
        let (modules, last) = filter.rsplit_once("::").unwrap_or(("", filter));
        let modules = modules.split("::").filter(|part| !part.is_empty());
        let whole = modules.map(|part| vec![format!("mod {part};"), format!("mod {part} {{")]);
        for names in whole.chain([vec![format!("mod {last}"), format!("fn {last}")]]) {
            let has = |source: &String| names.iter().any(|name| source.contains(name));
            let is_there = sources.iter().any(has);
            is_there
                .then_some(())
                .ok_or(format!("no test {}", names[0]))?;
        }
        Ok(())
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// What a command names and is not there.
fn check(members: &Members, told: &Told) -> Result<(), String> {
    let words: Vec<_> = told.words.iter().map(String::as_str).collect();
    let missing = |what: &str| Err(format!("no {what}"));
    if let Some((program, arguments)) = told.program() {
        let is_bin =
            |target: &Value| text(&target["kind"][0]) == "bin" && text(&target["name"]) == program;
        let is_listed = NOT_PARSED.iter().any(|(name, _)| *name == program);
        if words[0] != "cargo" && !members.targets().any(|(_, target)| is_bin(target)) {
            return missing(&format!("program {program}"));
        }
        if !arguments.is_empty() && !is_listed && !PARSED.contains(&program.as_str()) {
            return Err(format!("nothing reads the arguments of {program}"));
        }
        // Its own tests read them, and are long to build: here, the names alone.
        let sources = ["options", "results"].map(|name| format!("benchmarks/src/{name}.rs"));
        let options = sources
            .map(|file| fs::read_to_string(root().join(file)).unwrap())
            .concat();
        let mut named = arguments.iter().filter_map(|word| word.strip_prefix("--"));
        let is_unknown =
            |name: &&str| !options.contains(&format!("pub {}:", name.replace('-', "_")));
        if let Some(name) = named.find(is_unknown).filter(|_| program == "benchmarks") {
            return missing(&format!("option --{name}"));
        }
    }
    match words[0] {
        "cargo" => members.check(&told.words),
        "python" | "python3" => {
            let beside = root().join(&told.file).with_file_name(words[1]);
            let is_there = beside.exists();
            is_there
                .then_some(())
                .ok_or(format!("no file {}", beside.display()))
        }
        ".ci/run" => Ok(()),
        ".ci/full" => {
            let script = fs::read_to_string(root().join(".ci/full")).unwrap();
            let parts = words[1..].iter().filter(|part| **part != "PART");
            let mut missed = parts.filter(|part| !script.contains(&format!("\n{part}() {{")));
            missed.next().map_or(Ok(()), |part| missing(part))
        }
        script if script.ends_with("gpu.sh") => {
            let script = fs::read_to_string(root().join("benchmarks/gpu.sh")).unwrap();
            // Its name alone is no command.
            let Some(part) = words.get(1) else {
                return Ok(());
            };
            let has = script.contains(&format!("\n{part}) "));
            has.then_some(()).ok_or(format!("no {part}"))
        }
        script if script.ends_with("limited.sh") => {
            let is_there = root().join(script).exists();
            is_there.then_some(()).ok_or(format!("no file {script}"))
        }
        other if NOT_OURS.contains(&other) || told.program().is_some() => Ok(()),
        other => missing(other),
    }
}

#[test]
fn commands_name_what_is_there() {
    let (members, told) = (Members::find(), told());
    let failed: Vec<_> = told
        .iter()
        .filter_map(|told| Some(format!("{told}\n    {}", check(&members, told).err()?)))
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(told.len() > 60, "only {} commands were found", told.len());
    for (program, why) in NOT_PARSED {
        let is = |told: &Told| told.program().is_some_and(|(name, _)| name == program);
        assert!(told.iter().any(is), "no command starts {program}");
        println!("not read: the arguments of {program}: {why}");
    }
}

/// Cargo says nothing of a target that it leaves out for the features that it requires.
#[test]
fn the_check_compiles_every_target() {
    let script = fs::read_to_string(root().join(".ci/run")).unwrap();
    let (_, check) = script
        .split_once("cargo check --locked --workspace")
        .unwrap();
    let (_, features) = check.split_once("--features ").unwrap();
    let asked = features.lines().next().unwrap().split(',').map(Into::into);
    let members = Members::find();
    let on = members.features(members.0.keys().map(String::as_str), asked);
    for (package, target) in members.targets() {
        let (kind, name) = (text(&target["kind"][0]), text(&target["name"]));
        // It has a build of its own.
        if script.contains(&format!("--{kind} {name}")) {
            continue;
        }
        for feature in array(&target["required-features"]).iter().map(text) {
            let is_on = on.contains(&format!("{package}/{feature}"));
            // `mpi` needs a library.
            assert!(
                is_on || feature == "mpi",
                "{package}: {name} needs {feature}"
            );
        }
    }
}

#[test]
fn scripts_are_read() {
    let mut found = Vec::new();
    files(root(), &mut found);
    let mut count = 0;
    for path in found {
        let is_python = path.extension().is_some_and(|extension| extension == "py");
        let is_shell =
            fs::read_to_string(&path).is_ok_and(|text| text.starts_with("#!/usr/bin/env bash"));
        let mut command = match is_python {
            true => Command::new("python3"),
            false if is_shell => Command::new("bash"),
            false => continue,
        };
        match is_python {
            true => command.args([
                "-c",
                "import sys; compile(open(sys.argv[1]).read(), sys.argv[1], 'exec')",
            ]),
            false => command.arg("-n"),
        };
        let Ok(output) = command.arg(&path).output() else {
            println!("left out: {}, for want of a Python", path.display());
            continue;
        };
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        count += 1;
    }
    assert!(count >= 4, "only {count} scripts were found");
}
