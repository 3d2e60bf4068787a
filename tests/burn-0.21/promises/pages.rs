//! The pages of the workspace, docs.rs included: links lead somewhere, code is tested as it is shown.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the workspace.
fn root() -> &'static Path {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.find(|folder| folder.join("docs").is_dir()).unwrap()
}

/// The pages below a folder.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "artifacts" {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// The targets of a page's links: `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text.split("](").skip(1);
    targets.filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        heading
            .chars()
            .filter(kept)
            .collect::<String>()
            .replace(' ', "-")
    })
}

/// Whether a link of a page leads somewhere.
fn leads(page: &Path, link: &str) -> bool {
    if link.contains("://") {
        return true;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match file.is_empty() {
        true => page.to_owned(),
        false => page.parent().unwrap().join(file),
    };
    if anchor.is_empty() {
        return target.exists();
    }
    let text = fs::read_to_string(target);
    text.is_ok_and(|text| anchors(&text).any(|heading| heading == anchor))
}

#[test]
fn links_lead_somewhere() {
    let root = root();
    let mut found = Vec::new();
    pages(root, &mut found);
    let mut checked = 0;
    let mut dead = Vec::new();
    for page in found {
        let text = fs::read_to_string(&page).unwrap();
        for link in links(&text) {
            checked += 1;
            if !leads(&page, link) {
                let page = page.strip_prefix(root).unwrap();
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(
        dead.is_empty(),
        "links that lead nowhere:\n{}",
        dead.join("\n")
    );
    assert!(checked > 100, "only {checked} links were found");
}

/// The second line of a table, `|---|`, makes it one: other lines that begin with `|` are shown as text.
#[test]
fn tables_are_shown() {
    let root = root();
    let mut found = Vec::new();
    pages(root, &mut found);
    let mut tables = 0;
    for page in found {
        let text = fs::read_to_string(&page).unwrap();
        let lines: Vec<_> = text.lines().collect();
        for table in lines.split(|line| !line.starts_with('|')) {
            let Some(head) = table.first() else { continue };
            tables += 1;
            let rules = table.get(1).is_some_and(|line| line.starts_with("|---"));
            assert!(rules, "{}: no table begins with {head}", page.display());
        }
    }
    assert!(tables > 30, "only {tables} tables were found");
}

/// Each page of `docs` with code for Burn 0.22 is named where `burn-lean` compiles them, code for Burn
/// 0.21 is in the folder whose pages are compiled for it, and no code has lines that only rustdoc hides.
#[test]
fn code_is_tested_as_shown() {
    let root = root();
    let compiled = fs::read_to_string(root.join("crates/burn-lean/src/lib.rs")).unwrap();
    let mut found = Vec::new();
    pages(&root.join("docs"), &mut found);
    for page in found {
        let text = fs::read_to_string(&page).unwrap();
        let name = page.file_name().unwrap().to_str().unwrap();
        let mut blocks = text.split("```").skip(1).step_by(2);
        let is_of_0_21 = page.parent().unwrap().ends_with("burn-0.21");
        let (is_compiled, other) = match is_of_0_21 {
            true => (true, "rust"),
            false => (compiled.contains(&format!("docs/{name}")), "rs\n"),
        };
        assert!(
            is_compiled || !blocks.clone().any(|block| block.starts_with("rust")),
            "{name} has code that burn-lean's lib.rs does not include"
        );
        assert!(
            !blocks.clone().any(|block| block.starts_with(other)),
            "{name} has code of the other version of Burn"
        );
        let hides = |line: &str| line.starts_with("# ") || line == "#";
        let is_as_shown = |block: &str| !block.starts_with('r') || !block.lines().any(hides);
        assert!(blocks.clone().all(is_as_shown), "{name} has hidden lines");
        assert!(
            blocks.all(|block| !block.contains(",ignore")),
            "{name} has code that is not compiled"
        );
    }
}

/// On docs.rs, an item behind a feature says so.
#[test]
fn features_are_marked_on_docs_rs() {
    let crates = root().join("crates");
    let folders = [crates.clone(), crates.join("burn-0.21")];
    let entries = folders.iter().flat_map(|path| fs::read_dir(path).unwrap());
    for entry in entries {
        let folder = entry.unwrap().path();
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else {
            continue;
        };
        let has_features = manifest.contains("[package.metadata.docs.rs]");
        let source = fs::read_to_string(folder.join("src/lib.rs")).unwrap();
        let is_marked = source.contains("#![cfg_attr(docsrs, feature(doc_cfg))]");
        assert_eq!(is_marked, has_features, "{}", folder.display());
    }
}
