//! The layers of the library: which of its modules may use which. `ARCHITECTURE.md` has the same
//! map as a picture.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::TaskResult;

/// A module, and the modules that it uses. Every entry is one that the code needs.
type Layer = (&'static str, &'static [&'static str]);

/// The modules from the lowest layer to the highest. A module uses only modules that come before it
/// in this list.
const LAYERS: [Layer; 21] = [
    // Values and decisions.
    ("random", &[]),
    ("types", &["random"]),
    ("logic", &["types"]),
    // What an engine is.
    ("clock", &["types"]),
    ("metrics", &[]),
    ("engine", &["types", "logic", "clock"]),
    // What the engines, the fence and the cache on Redis share.
    ("redis_client", &["types", "logic", "clock", "random", "engine"]),
    // The engines.
    ("engine::memory", &["types", "logic", "clock", "engine"]),
    ("engine::file", &["types", "logic", "clock", "random", "engine"]),
    ("engine::redis", &["types", "logic", "clock", "random", "engine", "redis_client"]),
    ("engine::redlock", &["types", "logic", "clock", "random", "engine", "redis_client"]),
    ("engine::sql", &["types", "logic", "clock", "random", "engine"]),
    ("engine::zookeeper", &["types", "logic", "clock", "engine"]),
    // What serves every engine alike; it knows the trait alone.
    ("core", &["types", "logic", "clock", "random", "metrics", "engine"]),
    // The one place that knows all engines.
    (
        "registry",
        &[
            "types",
            "clock",
            "engine",
            "engine::memory",
            "engine::file",
            "engine::redis",
            "engine::redlock",
            "engine::sql",
            "engine::zookeeper",
        ],
    ),
    // What a program uses.
    ("api", &["types", "logic", "clock", "random", "metrics", "engine", "core", "registry"]),
    ("blocking", &["types", "clock", "metrics", "engine", "core", "api", "root"]),
    // The resource's side: fences and versioned updates in the user's own database.
    ("database", &["types", "logic"]),
    ("fence", &["types", "logic", "metrics", "redis_client", "database"]),
    ("versioned", &["types", "logic", "clock", "random", "database"]),
    // What leasehold's other crates share.
    (
        "internals",
        &[
            "types",
            "logic",
            "random",
            "metrics",
            "root",
            "redis_client",
            "engine::file",
            "engine::redis",
            "engine::redlock",
            "engine::sql",
            "engine::zookeeper",
        ],
    ),
];

/// Fails with every use of a module that its layer does not allow, and with every entry of the
/// table that no code needs.
pub(crate) fn check_layers(root: &Path) -> TaskResult {
    let source = root.join("crates/leasehold/src");
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for path in rust_files(&source)? {
        let module = module_path(path.strip_prefix(&source)?);
        // The root only names what is public.
        if module.is_empty() || is_test(&module) {
            continue;
        }
        for used in used_paths(&fs::read_to_string(&path)?, &module) {
            let (from, to) = (layer_of(&module), layer_of(&used));
            let shown = || {
                format!("  {}: {} uses {}", path.strip_prefix(root).unwrap_or(&path).display(), from, used.join("::"))
            };
            match LAYERS.iter().find(|(name, _)| *name == from) {
                Some((_, allowed)) if from == to || allowed.contains(&to.as_str()) => {
                    seen.insert((from, to));
                }
                Some(_) => wrong.push(shown()),
                None => wrong.push(format!("  {from} has no entry in xtask/src/layers.rs")),
            }
        }
    }
    for (from, allowed) in LAYERS {
        let unused = allowed.iter().filter(|to| !seen.contains(&(from.to_owned(), (**to).to_owned())));
        wrong.extend(unused.map(|to| format!("  xtask/src/layers.rs: {from} does not use {to}: remove the entry")));
    }
    wrong.dedup();
    if wrong.is_empty() { Ok(()) } else { Err(format!("uses against the layers\n{}", wrong.join("\n")).into()) }
}

fn rust_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The module that a file is: `engine::redis` for `engine/redis/mod.rs`.
fn module_path(file: &Path) -> Vec<String> {
    let parts = file.with_extension("");
    let parts = parts.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    parts.filter(|part| !matches!(part.as_str(), "mod" | "lib")).collect()
}

fn is_test(module: &[String]) -> bool {
    let folders = ["simulation", "scripted_server_tests", "virtual_time"];
    module.iter().any(|part| part == "tests" || part.ends_with("_tests") || folders.contains(&part.as_str()))
}

/// The entry of the table to which a path belongs. A name at the root, such as `crate::Locks`, is
/// the root's.
fn layer_of(path: &[String]) -> String {
    let Some(first) = path.first().filter(|first| first.starts_with(char::is_lowercase)) else {
        return "root".to_owned();
    };
    match path.get(1).map(|second| format!("{first}::{second}")) {
        Some(engine) if LAYERS.iter().any(|(name, _)| *name == engine) => engine,
        _ => first.clone(),
    }
}

/// The paths of the crate's own items that a file's code uses, from the crate's root. Comments and
/// tests are left out.
fn used_paths(text: &str, module: &[String]) -> Vec<Vec<String>> {
    let code = text.split("\nmod tests {").next().unwrap_or_default();
    let is_comment = |line: &&str| line.trim_start().starts_with("//");
    let without_comment = |line: &str| line.split(" // ").next().unwrap_or_default().to_owned() + "\n";
    let code: String = code.lines().filter(|line| !is_comment(line)).map(without_comment).collect();
    let mut found = Vec::new();
    // `use crate::engine;` makes `engine::redis::…` possible.
    for start in ["crate::", "super::", "self::", "engine::"] {
        for (at, _) in code.match_indices(start) {
            let before = &code[..at];
            if before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let (mut base, mut rest) = (module.to_vec(), &code[at..]);
            if start == "self::" {
                rest = &rest[start.len()..];
            } else if start != "super::" {
                (base, rest) = (Vec::new(), rest.strip_prefix("crate::").unwrap_or(rest));
            }
            while let Some(path) = rest.strip_prefix("super::") {
                base.pop();
                rest = path;
            }
            expand(&base, rest, &mut found);
        }
    }
    found
}

/// Adds the paths of a `use` such as `a::{b, c::d}` to `found`, each below `base`.
fn expand(base: &[String], text: &str, found: &mut Vec<Vec<String>>) {
    let mut path = base.to_vec();
    let mut rest = text;
    loop {
        if let Some(group) = rest.strip_prefix('{') {
            for item in items_of_group(group) {
                expand(&path, item.trim(), found);
            }
            return;
        }
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        if end > 0 && &rest[..end] != "self" {
            path.push(rest[..end].to_owned());
        }
        match rest[end..].strip_prefix("::") {
            Some(next) if next.starts_with(|c: char| c.is_alphanumeric() || c == '_' || c == '{') => rest = next,
            _ => break,
        }
    }
    found.push(path);
}

/// The items of a `use` group, split at its commas, up to the brace that closes the group.
fn items_of_group(group: &str) -> Vec<&str> {
    let (mut items, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' if depth == 0 => {
                items.push(&group[start..at]);
                start = at + 1;
            }
            '}' => {
                items.push(&group[start..at]);
                break;
            }
            _ => {}
        }
    }
    items.retain(|item| !item.trim().is_empty());
    items
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{layer_of, module_path, used_paths};

    fn uses(file: &str, code: &str) -> Vec<String> {
        let module = module_path(Path::new(file));
        used_paths(code, &module).iter().map(|path| layer_of(path)).collect()
    }

    #[test]
    fn every_form_of_a_use_is_read() {
        assert_eq!(uses("core/mod.rs", "use crate::engine::redis::Link;"), ["engine::redis"]);
        assert_eq!(
            uses("core/mod.rs", "use crate::engine::{Claim, sql::{Dialect, ddl}, self};"),
            ["engine", "engine::sql", "engine::sql", "engine"]
        );
        assert_eq!(uses("logic/lease.rs", "let now = crate::clock::now();"), ["clock"]);
        assert_eq!(
            uses("engine/sql/pool.rs", "use super::{config, ddl};\nuse super::super::redis::Link;"),
            ["engine::sql", "engine::sql", "engine::redis"]
        );
        assert_eq!(uses("engine/sql/mod.rs", "use super::Engine;"), ["engine"]);
        assert_eq!(uses("engine/mod.rs", "pub use self::redis::RedisEngine;"), ["engine::redis"]);
        assert_eq!(uses("core/guard.rs", "use crate::Locks;"), ["root"]);
        assert_eq!(uses("core/guard.rs", "use crate::engine;\nengine::file::open()"), ["engine", "engine::file"]);
    }

    #[test]
    fn comments_and_tests_are_left_out() {
        assert!(uses("types/error.rs", "/// See [`Clock`](crate::clock::Clock).").is_empty());
        assert!(
            uses("core/guard.rs", "fn a() {}\n\n#[cfg(test)]\nmod tests {\n    use crate::registry;\n}\n").is_empty()
        );
    }
}
