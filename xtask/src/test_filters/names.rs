//! The names of the tests of each crate, read from the sources with the modules that they are in. Those that the
//! macros `suite!`, `essentials!` and `on_both!` make are among them; for `essentials!`, every case counts. Of the
//! features, only `nightly` is looked at.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// A test, or a module of tests: its name then ends with `::`.
#[derive(Clone, Debug)]
pub(super) struct Test {
    /// `lib`, `bin`, or a program in `tests`.
    pub(super) program: String,
    pub(super) name: String,
    pub(super) needs_nightly: bool,
}

impl Test {
    pub(super) fn new(program: &str, name: &str, needs_nightly: bool) -> Self {
        Self { program: program.to_owned(), name: name.to_owned(), needs_nightly }
    }

    /// A test or module inside of this module.
    fn inner(&self, name: &str, needs_nightly: bool) -> Self {
        Self::new(&self.program, &format!("{}{name}", self.name), self.needs_nightly || needs_nightly)
    }
}

/// The tests of each crate of the workspace.
pub(super) fn read_tests(root: &Path) -> io::Result<BTreeMap<String, Vec<Test>>> {
    let (cases, mut all) = (read_cases(&root.join("crates/leasehold-conformance/src/cases"))?, BTreeMap::new());
    let workspace = fs::read_to_string(root.join("Cargo.toml"))?;
    let members = workspace.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
    for folder in members.split('"').skip(1).step_by(2).map(|member| root.join(member)) {
        let manifest = fs::read_to_string(folder.join("Cargo.toml"))?;
        let name = manifest.split("name = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        let sources = folder.join("src");
        let mut programs = vec![
            ("lib".to_owned(), sources.join("lib.rs"), sources.clone()),
            ("bin".to_owned(), sources.join("main.rs"), sources),
        ];
        for path in entries(&folder.join("tests")).unwrap_or_default() {
            let of_folder = (stem(&path), path.join("main.rs"), path.clone());
            programs.push(if path.is_dir() { of_folder } else { (stem(&path), path, folder.join("tests")) });
        }
        let tests: &mut Vec<Test> = all.entry(name.to_owned()).or_default();
        for (program, file, folder) in programs {
            read_module(&file, &folder, &Test::new(&program, "", false), &cases, tests)?;
        }
    }
    Ok(all)
}

/// The cases of the conformance suite: one for each function of a file.
fn read_cases(folder: &Path) -> io::Result<Vec<String>> {
    let mut cases = Vec::new();
    for file in entries(folder)? {
        let text = fs::read_to_string(&file)?;
        let names = text.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next());
        cases.extend(names.map(|name| format!("{}::{name}", stem(&file))));
    }
    Ok(cases)
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads a module if its file exists, and the modules below it, whose files are in `folder`.
fn read_module(file: &Path, folder: &Path, module: &Test, cases: &[String], found: &mut Vec<Test>) -> io::Result<()> {
    if !file.exists() {
        return Ok(());
    }
    let (tests, files) = read_items(&fs::read_to_string(file)?, module, cases);
    found.extend(tests);
    for (path, module) in files {
        let below = folder.join(path.trim_end_matches(".rs"));
        if path.ends_with(".rs") {
            read_module(&file.with_file_name(&path), &below, &module, cases, found)?;
        } else {
            read_module(&below.with_extension("rs"), &below, &module, cases, found)?;
            read_module(&below.join("mod.rs"), &below, &module, cases, found)?;
        }
    }
    Ok(())
}

/// The tests in the text of a module, and its modules in other files: each with the path of its file, which has the
/// ending `.rs` if an attribute names the file.
pub(super) fn read_items(text: &str, module: &Test, cases: &[String]) -> (Vec<Test>, Vec<(String, Test)>) {
    let (mut tests, mut files, mut attributes, mut end) = (Vec::new(), Vec::new(), String::new(), 0);
    // The modules around a line. Each ends at a brace at its own indentation.
    let mut around: Vec<(usize, &str)> = Vec::new();
    for line in text.split_inclusive('\n') {
        end += line.len();
        let (code, indent) = (line.trim(), line.len() - line.trim_start().len());
        if code.starts_with("#[") || attributes.matches('[').count() > attributes.matches(']').count() {
            attributes.push_str(code);
            continue;
        }
        if code.is_empty() || code.starts_with("//") {
            continue;
        }
        if code == "}" {
            around.retain(|(start, _)| *start < indent);
        }
        let needs_nightly = attributes.contains("cfg(feature = \"nightly\")");
        let path = |name: &str| around.iter().map(|(_, module)| *module).chain([name]).collect::<Vec<_>>().join("::");
        let mut add = |name: &str| tests.push(module.inner(&path(name), needs_nightly));
        if let Some(name) = declared_name(code, "mod ") {
            if code.ends_with(';') {
                let named = attributes.split("#[path = \"").nth(1).and_then(|rest| rest.split('"').next());
                let file = named.map_or_else(|| path(name).replace("::", "/"), str::to_owned);
                files.push((file, module.inner(&format!("{}::", path(name)), needs_nightly)));
            } else if code.ends_with('{') {
                around.push((indent, name));
            }
        } else if let Some(name) = declared_name(code, "fn ") {
            if attributes.contains("#[test]") || attributes.contains("#[tokio::test") {
                add(name);
            }
        } else if let Some((name, call)) = code.split_once('!') {
            let suite = first_word(call.trim_start_matches('('));
            match name.rsplit("::").next().unwrap_or_default() {
                "suite" => cases.iter().for_each(|case| add(&format!("{suite}::{case}"))),
                "essentials" => {
                    let names = cases.iter().filter_map(|case| case.rsplit("::").next());
                    names.for_each(|name| add(&format!("{suite}::{name}")));
                }
                "on_both" => {
                    let call = &text[end - line.len()..];
                    let names = call.split(['(', '{', ')', '}']).nth(1).unwrap_or_default();
                    for name in names.split([' ', ',', '\n']).filter(|name| !name.is_empty()) {
                        ["mariadb", "postgres"].iter().for_each(|database| add(&format!("{database}::{name}")));
                    }
                }
                _ => {}
            }
        }
        attributes.clear();
    }
    (tests, files)
}

/// The name after `mod` or `fn`, if the line declares one.
fn declared_name<'a>(code: &'a str, keyword: &str) -> Option<&'a str> {
    let (before, after) = code.split_once(keyword)?;
    let is_declaration = before.split_whitespace().all(|word| word == "async" || word.starts_with("pub"));
    is_declaration.then(|| first_word(after)).filter(|name| !name.is_empty())
}

fn first_word(text: &str) -> &str {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}
