//! The commands that pages and the heads of programs tell a reader to run.
//!
//! Mounted by the tests of each program that reads options, which has [`are_parsed`] called with
//! itself. What else a command names is checked in `burn-0.21/promises/commands.rs`.

#![allow(dead_code, reason = "no program of tests uses all of it")]

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs by which a command is known in the middle of a text.
const PROGRAMS: [&str; 8] = [
    "cargo",
    "mpirun",
    "python",
    "python3",
    "vit",
    "vit-0-21",
    "benchmarks",
    "burn-memory",
];

/// A command, without the variables of its environment.
pub(crate) struct Told {
    /// The file that tells it.
    pub(crate) file: PathBuf,
    pub(crate) words: Vec<String>,
}

impl Display for Told {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.words.join(" "))
    }
}

impl Told {
    /// The program of this workspace that the command starts, and its arguments. That of `cargo
    /// run` has the name of its package, or of the package and the example.
    pub(crate) fn program(&self) -> Option<(String, &[String])> {
        let words = &self.words;
        let after = |option: &str| {
            let place = words.iter().position(|word| word == option)?;
            words.get(place + 1)
        };
        if words[0] == "cargo" {
            let package = after("-p").filter(|_| words[1] == "run")?;
            let example = after("--example").map_or(String::new(), |name| format!(" {name}"));
            let end = words.iter().position(|word| word == "--");
            let arguments = end.map_or(&[][..], |end| &words[end + 1..]);
            return Some((format!("{package}{example}"), arguments));
        }
        // Perhaps `mpirun` starts it.
        let built = |word: &String| word.starts_with("target/release/");
        if let Some(place) = words.iter().position(built) {
            let name = words[place].rsplit('/').next()?;
            return Some((name.into(), &words[place + 1..]));
        }
        PROGRAMS[4..]
            .contains(&words[0].as_str())
            .then(|| (words[0].clone(), &words[1..]))
    }
}

/// The folder of the workspace.
pub(crate) fn root() -> &'static Path {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.find(|folder| folder.join("docs").is_dir()).unwrap()
}

/// The files below a folder that are not built.
pub(crate) fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        let is_hidden = name.starts_with('.') && name != ".ci" && name != ".github";
        if path.is_file() {
            found.push(path);
        } else if !is_hidden && name != "target" && name != "artifacts" {
            files(&path, found);
        }
    }
}

/// All commands that are told.
pub(crate) fn told() -> Vec<Told> {
    let mut found = Vec::new();
    files(root(), &mut found);
    let mut told = Vec::new();
    for path in found {
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let file = path.strip_prefix(root()).unwrap();
        let commands = match path.extension().and_then(|extension| extension.to_str()) {
            Some("md") => of_page(&text),
            Some("rs") => of_head(text.lines().map_while(|line| line.strip_prefix("//!"))),
            Some("py") => of_head(text.split("\"\"\"").nth(1).unwrap_or("").lines()),
            _ if text.starts_with("#!/") => {
                of_head(text.lines().map_while(|line| line.strip_prefix('#')))
            }
            _ => Vec::new(),
        };
        told.extend(commands.into_iter().map(|words| Told {
            file: file.into(),
            words,
        }));
    }
    told
}

/// Those in blocks of `sh`, and in the text of a page.
fn of_page(text: &str) -> Vec<Vec<String>> {
    let mut told = Vec::new();
    for (index, part) in text.split("```").enumerate() {
        match part.strip_prefix("sh\n") {
            Some(block) if index % 2 == 1 => told.extend(of_block(block)),
            _ if index % 2 == 0 => told.extend(of_text(part)),
            _ => {}
        }
    }
    told
}

fn of_block(block: &str) -> Vec<Vec<String>> {
    let (mut told, mut variables) = (Vec::new(), HashMap::<String, String>::new());
    for line in block.replace("\\\n", " ").lines() {
        let mut line = line.split(" #").next().unwrap().trim().to_owned();
        for (name, value) in &variables {
            line = line.replace(&format!("${name}"), value);
        }
        let assigned = line.split_once('=').filter(|(name, value)| {
            let is_one = value.starts_with('"') || !value.contains(' ');
            is_one && name.chars().all(char::is_alphabetic)
        });
        match assigned {
            Some((name, value)) => {
                variables.insert(name.into(), value.trim_matches('"').into());
            }
            None if line.is_empty() || line.starts_with('#') => {}
            None => told.extend(line.split("&&").map(words)),
        }
    }
    told
}

/// Those in quotes.
fn of_text(text: &str) -> Vec<Vec<String>> {
    let paragraphs = text.split("\n\n");
    let quoted = paragraphs.flat_map(|text| text.split('`').skip(1).step_by(2));
    quoted.map(words).filter(|words| is_known(words)).collect()
}

/// Those that are a line, or its end, and those in quotes.
fn of_head<'t>(head: impl Iterator<Item = &'t str>) -> Vec<Vec<String>> {
    let head: Vec<_> = head.collect();
    let lines = head.iter().map(|line| {
        let line = line.split(" #").next().unwrap().trim();
        // Explained on the same line, or announced.
        let line = line.split("  ").next().unwrap();
        words(line.rsplit(": ").next().unwrap())
    });
    let lines = lines.filter(|words| is_known(words));
    lines.chain(of_text(&head.join("\n"))).collect()
}

/// Whether it is a command, and no name of a program.
fn is_known(words: &[String]) -> bool {
    words.first().is_some_and(|first| {
        let is_script = first.starts_with(".ci/") || first.ends_with(".sh");
        is_script || words.len() > 1 && PROGRAMS.contains(&first.as_str())
    })
}

/// The words of a command: what stands for something, `<the address>`, is one.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::<String>::new();
    for word in text.split_whitespace() {
        match words.last_mut() {
            Some(last) if last.starts_with('<') && last.len() > 1 && !last.ends_with('>') => {
                last.push_str(word);
            }
            None if word.contains('=') => {}
            _ => words.push(word.into()),
        }
    }
    words
}

/// Has a program read the arguments of all commands that start it, by one of these names.
#[track_caller]
pub(crate) fn are_parsed(names: &[&str], path: &str) {
    let mut count = 0;
    for told in told() {
        let Some((_, arguments)) = told.program().filter(|(name, _)| names.contains(&&**name))
        else {
            continue;
        };
        count += 1;
        // It ends a program that has understood all before it.
        let output = Command::new(path).args(arguments).arg("--help").output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{told}\n{said}");
    }
    assert!(count > 0, "no command starts {names:?}");
}
