//! The crates are built in storeys. A file uses only its own storey and those below, and no two
//! files use each other, not even by way of a third one.
//!
//! A name counts as used where it is defined, whichever module re-exports it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// By crate, the modules of its `src`: its storeys from the ground up, with commas between them. A
/// module that is not named is in the storey of the one around it.
const STOREYS: [(&str, &str); 5] = [
    (
        "burn-0.21/burn-gradient-release",
        "util, tape, slot, error, groups, subgraph, planner, tensor, fork, lower, backward, backend, \
         distributed, ops, optimizer",
    ),
    (
        "burn-lean",
        "lock path wide error device_memory, backend marks tape groups reduction tensors, \
         scratch backward gradients early, recompute, optimizer, \
         mixed_precision data_parallel train operations optim safetensors peft timeline",
    ),
    (
        "lean-arithmetic",
        "turns, norm, exact nf4, groups, settings, scaling, clipping, slices, optim",
    ),
    (
        "burn-0.21/burn-gradient-release-optim",
        "number, moment, backend, cube, flex, step, settings, optim, accumulation, bf16, flat_linear",
    ),
    (
        "burn-0.21/burn-gradient-release-device-memory",
        "meter, server, runtime, backend, device_memory",
    ),
];

/// A path from the root of the crate, such as `["tape", "consumers"]`.
type ModulePath = Vec<String>;

/// The sources of a crate.
#[derive(Default)]
struct Sources {
    /// Code of each module, without comments and without unit tests.
    modules: BTreeMap<ModulePath, String>,
    /// The original of each re-exported name.
    re_exports: BTreeMap<ModulePath, ModulePath>,
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Takes the path, or the paths in braces, that `text` begins with.
fn take_paths(text: &mut &str, mut path: ModulePath) -> Vec<ModulePath> {
    loop {
        *text = text.trim_start();
        if let Some(list) = text.strip_prefix('{') {
            let mut paths = Vec::new();
            *text = list;
            loop {
                *text = text.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
                if let Some(rest) = text.strip_prefix('}') {
                    *text = rest;
                    return paths;
                }
                let before = text.len();
                paths.extend(take_paths(text, path.clone()));
                assert!(text.len() < before, "no list of paths: {text}");
            }
        }
        let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        path.extend((!word.is_empty()).then(|| word.to_owned()));
        *text = rest.strip_prefix('*').unwrap_or(rest);
        match text.strip_prefix("::") {
            Some(rest) if !word.is_empty() => *text = rest,
            _ => return vec![path],
        }
    }
}

/// A path in a module, from the root of the crate.
fn absolute(module: &[String], path: ModulePath) -> ModulePath {
    let mut from_root = module.to_vec();
    for name in path {
        match name.as_str() {
            "crate" => from_root.clear(),
            "self" => {}
            "super" => drop(from_root.pop()),
            _ => from_root.push(name),
        }
    }
    from_root
}

impl Sources {
    /// Of modules with their code.
    fn of(modules: &[(&str, &str)]) -> Self {
        let mut sources = Self::default();
        for (module, code) in modules {
            let module = module.split("::").filter(|name| !name.is_empty());
            sources.add(module.map(str::to_owned).collect(), code);
        }
        sources
    }

    fn add(&mut self, module: ModulePath, source: &str) {
        let code = source.split("\nmod tests {").next();
        let lines = code.unwrap_or_default().lines();
        let lines = lines.map(|line| line.split("//").next().unwrap_or_default());
        let mut code = lines.collect::<Vec<_>>().join("\n");
        // A re-export passes a name on: it is no use of it.
        for start in ["pub use ", "pub(crate) use ", "pub(super) use "] {
            while let Some(at) = code.find(start) {
                let end = at + code[at..].find(';').expect("a `use` has an end");
                let re_export = code[at..end].to_owned();
                code.replace_range(at..end, "");
                for path in take_paths(&mut &re_export[start.len()..], Vec::new()) {
                    let name = path.last().cloned();
                    let name: ModulePath = module.iter().cloned().chain(name).collect();
                    let original = absolute(&module, path);
                    // A macro is passed on where it is defined.
                    if original != name {
                        self.re_exports.insert(name, original);
                    }
                }
            }
        }
        self.modules.insert(module, code);
    }

    fn read(&mut self, folder: &Path, module: &ModulePath) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let mut module = module.clone();
            if !["lib", "mod"].contains(&name) {
                module.push(name.to_owned());
            }
            if path.is_dir() {
                self.read(&path, &module);
            } else {
                self.add(module, &fs::read_to_string(&path).unwrap());
            }
        }
    }

    /// The module in which a name is defined.
    fn module_of(&self, path: &[String]) -> ModulePath {
        for end in (0..=path.len()).rev() {
            let (known, rest) = path.split_at(end);
            // A function may have the name of its module.
            let is_module = self.modules.contains_key(known);
            let is_passed_on = rest.is_empty() || !is_module;
            match self.re_exports.get(known).filter(|_| is_passed_on) {
                Some(original) => return self.module_of(&[original, rest].concat()),
                None if is_module => return known.to_vec(),
                None => {}
            }
        }
        Vec::new()
    }

    /// The modules whose names a module uses.
    fn used_by(&self, module: &ModulePath) -> BTreeSet<ModulePath> {
        let code = &self.modules[module];
        let mut used = BTreeSet::new();
        for (at, _) in code.match_indices("::") {
            let start = code[..at].rfind(|c| !is_word(c)).map_or(0, |end| end + 1);
            let word = &code[start..at];
            let child = [module.as_slice(), &[word.to_owned()]].concat();
            let is_first = !code[..start].ends_with(':');
            let is_of_crate = ["crate", "self", "super"].contains(&word);
            if is_first && (is_of_crate || self.modules.contains_key(&child)) {
                let paths = take_paths(&mut &code[start..], Vec::new());
                let paths = paths.into_iter().map(|path| absolute(module, path));
                used.extend(paths.map(|path| self.module_of(&path)));
            }
        }
        used.remove(module);
        used
    }

    /// Each use of something above, and the modules that use each other in a circle.
    fn breaches(&self, storeys: &str) -> Vec<String> {
        let height = |module: &ModulePath| {
            let mut around = (1..=module.len()).rev().map(|end| module[..end].join("::"));
            around.find_map(|name| {
                let has = |storey: &str| storey.split(' ').any(|module| module == name);
                storeys.split(", ").position(has)
            })
        };
        let modules = self.modules.keys().filter(|module| !module.is_empty());
        let mut uses: BTreeMap<_, _> = modules
            .map(|module| (module, self.used_by(module)))
            .collect();
        let mut breaches = Vec::new();
        for (module, used) in &uses {
            let name = module.join("::");
            let Some(own) = height(module) else {
                breaches.push(format!("{name} is in no storey"));
                continue;
            };
            let above = |used: &&ModulePath| height(used).is_none_or(|used| used > own);
            for used in used.iter().filter(above) {
                breaches.push(format!("{name} uses crate::{}, above it", used.join("::")));
            }
        }
        // Takes away whatever uses nothing that is left, or is used by nothing: circles stay.
        loop {
            let left: BTreeSet<_> = uses.keys().copied().cloned().collect();
            let used: BTreeSet<_> = uses.values().flatten().cloned().collect();
            uses.values_mut()
                .for_each(|used| used.retain(|used| left.contains(used)));
            uses.retain(|module, uses| !uses.is_empty() && used.contains(*module));
            if uses.len() == left.len() {
                break;
            }
        }
        if !uses.is_empty() {
            let names: Vec<_> = uses.keys().map(|module| module.join("::")).collect();
            breaches.push(format!("{} use each other", names.join(", ")));
        }
        breaches
    }
}

#[test]
fn a_file_uses_what_stands_below_it() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    let breaches = STOREYS.iter().flat_map(|(name, storeys)| {
        let mut sources = Sources::default();
        sources.read(&crates.join(name).join("src"), &Vec::new());
        let breaches = sources.breaches(storeys).into_iter();
        breaches.map(move |breach| format!("{name}: {breach}"))
    });
    let breaches: Vec<_> = breaches.collect();
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn breaches_are_seen() {
    let circle = "high::helper, high::inner, low use each other";
    let above = "low uses crate::high::inner, above it";
    for (low, expected) in [
        ("use std::fmt;\n// crate::high\n", &[][..]),
        ("use crate::Name;", &[above, circle]),
        ("fn f() { crate::Name::new() }", &[above, circle]),
        (
            "use crate::{\n    high::{self, Other},\n};",
            &["low uses crate::high, above it", above, circle],
        ),
    ] {
        let sources = Sources::of(&[
            ("", "pub use high::Name;"),
            ("high", "pub use inner::{Other, Name};"),
            ("high::inner", "use super::helper;"),
            ("high::helper", "use crate::low::Low;"),
            ("low", low),
        ]);
        assert_eq!(sources.breaches("low, high"), expected, "{low}");
    }
    let sources = Sources::of(&[
        ("low", "mod one;\nfn f() { one::g() }"),
        ("low::one", "use super::f;"),
    ]);
    assert_eq!(sources.breaches("low"), ["low, low::one use each other"]);
    // A module within another may have a storey of its own.
    let sources = Sources::of(&[
        ("low", "pub use own::own;"),
        ("low::own", "pub fn own() {}"),
        ("low::other", "use crate::high::f;"),
        (
            "high",
            "use crate::low::own;\nuse crate::low::own::own as same;",
        ),
    ]);
    assert_eq!(
        sources.breaches("low, high"),
        ["low::other uses crate::high, above it"]
    );
    assert_eq!(sources.breaches("low::own, high, low"), [""; 0]);
}
