//! Every method of every backend trait is forwarded by each decorator: a default that is not overridden
//! silently loses the inner backend's own version.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::MetadataCommand;
use syn::{Attribute, File, ImplItem, Item, TraitItem, Type};

/// The traits a backend is made of.
const TRAITS: [&str; 9] = [
    "FloatTensorOps",
    "IntTensorOps",
    "BoolTensorOps",
    "ModuleOps",
    "ActivationOps",
    "QTensorOps",
    "TransactionOps",
    "Backend",
    "AutodiffBackend",
];

/// Names of methods, by trait.
type Methods = BTreeMap<String, BTreeSet<String>>;

/// The platform that this runs on.
fn host() -> String {
    let output = Command::new(env!("CARGO"))
        .arg("-vV")
        .output()
        .expect("cargo runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("cargo knows its host").to_owned()
}

/// The source of `package` that this workspace is built with.
fn source_of(package: &str) -> PathBuf {
    let metadata = MetadataCommand::new()
        .manifest_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        // Of other platforms' packages not even the manifests need be here.
        .other_options([
            "--locked".into(),
            "--offline".into(),
            format!("--filter-platform={}", host()),
        ])
        .exec()
        .expect("cargo knows its packages");
    let mut found = metadata
        .packages
        .iter()
        .filter(|found| found.name.as_str() == package);
    let manifest = &found
        .next()
        .unwrap_or_else(|| panic!("{package} is locked"))
        .manifest_path;
    assert!(
        found.next().is_none(),
        "{package} is locked in two versions"
    );
    manifest.with_file_name("src").into_std_path_buf()
}

/// All Rust files below `folder`.
fn files(folder: &Path) -> Vec<File> {
    let mut parsed = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            parsed.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("readable");
            let file = syn::parse_file(&text)
                .unwrap_or_else(|error| panic!("{} does not parse: {error}", path.display()));
            parsed.push(file);
        }
    }
    parsed
}

/// Behind the feature `distributed`, which asks for another kind of backend altogether.
fn is_distributed(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| {
                let condition = list.tokens.to_string();
                condition.contains("distributed") && !condition.contains("not")
            })
    })
}

/// The methods that `files` declare for the traits of a backend, defaulted ones included.
fn declared(files: &[File]) -> Methods {
    let mut methods = Methods::new();
    for item in files.iter().flat_map(|file| &file.items) {
        let Item::Trait(item) = item else { continue };
        let name = item.ident.to_string();
        if !TRAITS.contains(&name.as_str()) {
            continue;
        }
        let names = methods.entry(name).or_default();
        for item in &item.items {
            if let TraitItem::Fn(method) = item
                && !is_distributed(&method.attrs)
            {
                names.insert(method.sig.ident.to_string());
            }
        }
    }
    methods
}

/// The methods in a table of `burn_decorator`, which a decorator has forwarded all at once.
fn table(name: &str) -> &'static [&'static str] {
    macro_rules! names {
        ($($name:ident($($argument:ident: $type:tt),*) -> $output:tt;)*) => {
            &[$(stringify!($name)),*]
        };
    }
    match name {
        "float_tensor_ops" => burn_decorator::float_tensor_ops!(names),
        "int_tensor_ops" => burn_decorator::int_tensor_ops!(names),
        "bool_tensor_ops" => burn_decorator::bool_tensor_ops!(names),
        "quantized_tensor_ops" => burn_decorator::quantized_tensor_ops!(names),
        "module_ops" => burn_decorator::module_ops!(names),
        "activation_ops" => burn_decorator::activation_ops!(names),
        _ => panic!("burn_decorator has no table {name}"),
    }
}

/// The methods that `files` write out, or take from a table, in impl blocks for `decorator`.
fn implemented(files: &[File], decorator: &str) -> Methods {
    let mut methods = Methods::new();
    for item in files.iter().flat_map(|file| &file.items) {
        let Item::Impl(item) = item else { continue };
        let Some((_, path, _)) = &item.trait_ else {
            continue;
        };
        let Type::Path(implementor) = item.self_ty.as_ref() else {
            continue;
        };
        if !ends_with(&implementor.path, decorator) {
            continue;
        }
        let name = path
            .segments
            .last()
            .expect("a path has a name")
            .ident
            .to_string();
        let names = methods.entry(name).or_default();
        for item in &item.items {
            match item {
                ImplItem::Fn(method) => {
                    names.insert(method.sig.ident.to_string());
                }
                ImplItem::Macro(item) => {
                    let name = &item
                        .mac
                        .path
                        .segments
                        .last()
                        .expect("a macro has a name")
                        .ident;
                    names.extend(table(&name.to_string()).iter().map(ToString::to_string));
                }
                _ => {}
            }
        }
    }
    methods
}

fn ends_with(path: &syn::Path, name: &str) -> bool {
    path.segments
        .last()
        .is_some_and(|segment| segment.ident == name)
}

/// `Trait::method` for each method that is declared and not implemented.
fn missing(declared: &Methods, implemented: &Methods) -> Vec<String> {
    let none = BTreeSet::new();
    declared
        .iter()
        .flat_map(|(name, methods)| {
            let given = implemented.get(name).unwrap_or(&none);
            methods
                .difference(given)
                .map(move |method| format!("{name}::{method}"))
        })
        .collect()
}

/// `traits`: those that it implements.
fn forwards_every_method(package: &str, decorator: &str, traits: &[&str]) {
    let mut declared = declared(&files(&source_of("burn-backend")));
    // A trait that was renamed would otherwise count as forwarded.
    for name in TRAITS {
        assert!(
            declared.contains_key(name),
            "burn-backend has no trait {name}"
        );
    }
    let count: usize = declared.values().map(BTreeSet::len).sum();
    assert!(count > 400, "found {count} methods only");

    declared.retain(|name, _| traits.contains(&name.as_str()));
    let implemented = implemented(&files(&source_of(package)), decorator);
    let missing = missing(&declared, &implemented);
    assert!(
        missing.is_empty(),
        "{} not forwarded: {}",
        missing.len(),
        missing.join(", ")
    );
}

#[test]
fn gradient_release_forwards_every_method() {
    forwards_every_method("burn-gradient-release", "GradientRelease", &TRAITS);
}

#[test]
fn the_recorded_backend_forwards_every_method() {
    let traits = TRAITS.into_iter().filter(|name| *name != "AutodiffBackend");
    let traits: Vec<_> = traits.collect();
    forwards_every_method("burn-memory-timeline", "Recorded", &traits);
}

/// The checker itself: it finds what is missing, defaults included, and looks at nothing else.
#[test]
fn the_checker_finds_what_is_missing() {
    let parse = |text: &str| vec![syn::parse_file(text).expect("the sample parses")];
    let declared = declared(&parse(
        "pub trait TransactionOps<B> {
             fn plain(x: u8) -> u8;
             fn defaulted(x: u8) -> u8 { x }
             #[cfg(feature = \"distributed\")]
             fn elsewhere() {}
         }
         pub trait Unrelated { fn other(); }",
    ));
    assert_eq!(declared["TransactionOps"].len(), 2);
    assert!(!declared.contains_key("Unrelated"));

    let implemented = |text| implemented(&parse(text), "GradientRelease");
    let everything = implemented(
        "impl<A> TransactionOps<Self> for GradientRelease<A> {
             fn plain(x: u8) -> u8 { x }
             fn defaulted(x: u8) -> u8 { x }
         }",
    );
    assert!(missing(&declared, &everything).is_empty());

    let from_a_table = implemented(
        "impl<A> ActivationOps<Self> for GradientRelease<A> { burn_decorator::activation_ops!(f); }",
    );
    assert!(from_a_table["ActivationOps"].contains("gelu_backward"));
    assert!(!from_a_table["ActivationOps"].contains("float_add"));

    let incomplete = implemented(
        "impl<A> TransactionOps<Self> for crate::GradientRelease<A> { fn plain(x: u8) -> u8 { x } }
         impl<A> TransactionOps<Self> for Other<A> { fn defaulted(x: u8) -> u8 { x } }
         impl<A> GradientRelease<A> { fn defaulted(x: u8) -> u8 { x } }",
    );
    assert_eq!(
        missing(&declared, &incomplete),
        ["TransactionOps::defaulted"]
    );
}
