//! The house is built in storeys: a file uses only what stands below it.

use std::{fs, path::Path};

/// From the ground up.
const STOREYS: [&str; 13] = [
    "util",
    "tape",
    "slot",
    "groups",
    "subgraph",
    "planner",
    "tensor",
    "fork",
    "lower",
    "backward",
    "distributed",
    "backend",
    "ops",
];
/// What stands on all of them.
const TOP: &str = "optimizer";

fn storey(name: &str) -> Option<usize> {
    let mut storeys = STOREYS.iter().chain([&TOP]);
    storeys.position(|storey| *storey == name)
}

/// The storeys that a file names: `crate::tape::..`, or `tape::..` in a list of `use crate::{..}`.
fn named(source: &str) -> Vec<&str> {
    let mut named = Vec::new();
    let mut in_list = false;
    for line in source.lines() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        let paths = line.split("crate::").skip(1);
        named.extend(paths.flat_map(|path| path.split(|c: char| !c.is_alphanumeric() && c != '_')));
        if in_list && let Some(entry) = line.strip_prefix("    ") {
            named.extend(
                entry
                    .split(|c: char| !c.is_alphanumeric() && c != '_')
                    .take(1),
            );
        }
        in_list = line.ends_with("use crate::{") || in_list && line != "};";
    }
    named
}

fn check(folder: &Path, own: Option<&str>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            check(&path, own.or(Some(&name)));
            continue;
        }
        let own = own.unwrap_or(&name);
        if ["lib", "storeys"].contains(&own) {
            continue;
        }
        let height = storey(own).unwrap_or_else(|| panic!("{own} is in no storey"));
        let source = fs::read_to_string(&path).unwrap();
        for other in named(&source) {
            assert!(
                storey(other).is_none_or(|other| other <= height),
                "{} uses {other}, which stands above it",
                path.display()
            );
        }
    }
}

#[test]
fn a_file_uses_what_stands_below_it() {
    check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), None);
}
