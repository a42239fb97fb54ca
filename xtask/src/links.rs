//! Links between the documents: each leads to a file, and to a heading of it. Those of a crate's
//! README stay inside its package.

use std::fs;
use std::path::{Path, PathBuf};

use crate::TaskResult;

/// Fails with all broken links of the pages.
pub(crate) fn check_links(root: &Path) -> TaskResult {
    let mut broken = Vec::new();
    for page in markdown_pages(root)? {
        let text = fs::read_to_string(&page)?;
        let shown = page.strip_prefix(root).unwrap_or(&page).display().to_string();
        for link in link_targets(&text) {
            if let Some(why) = broken_reason(&page, link)? {
                broken.push(format!("  {shown}: {link}: {why}"));
            }
        }
    }
    for page in readmes(root)? {
        let text = fs::read_to_string(&page)?;
        let shown = page.strip_prefix(root).unwrap_or(&page).display().to_string();
        let out = link_targets(&text).into_iter().filter(|link| !link.starts_with('#'));
        broken.extend(out.map(|link| format!("  {shown}: {link}: no such file inside the package")));
    }
    if broken.is_empty() { Ok(()) } else { Err(format!("broken links\n{}", broken.join("\n")).into()) }
}

/// The Markdown pages at the root and in `docs`.
pub(crate) fn markdown_pages(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    for folder in [root.to_owned(), root.join("docs")] {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// The READMEs of the crates.
pub(crate) fn readmes(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let crates = fs::read_dir(root.join("crates"))?;
    let pages = crates.map(|entry| entry.map(|entry| entry.path().join("README.md")));
    Ok(pages.collect::<std::io::Result<Vec<_>>>()?.into_iter().filter(|page| page.exists()).collect())
}

/// The targets of `[text](target)`, but for those on other hosts.
fn link_targets(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets.filter(|target| !target.contains([' ', '\n']) && !target.contains("://")).collect()
}

/// Why a link is broken, if it is.
fn broken_reason(page: &Path, link: &str) -> std::io::Result<Option<&'static str>> {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.to_owned() } else { page.with_file_name(file) };
    if !target.exists() {
        return Ok(Some("no such file"));
    }
    if heading.is_empty() || target.extension().is_none_or(|ending| ending != "md") {
        return Ok(None);
    }
    let text = fs::read_to_string(&target)?;
    Ok((!heading_anchors(&text).any(|anchor| anchor == heading)).then_some("no such heading"))
}

/// The headings of a page, as links name them.
fn heading_anchors(text: &str) -> impl Iterator<Item = String> + '_ {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::{heading_anchors, link_targets};

    #[test]
    fn links_and_headings_are_found() {
        let text = "# Fail-over, and `strict`\n[a](redis.md#when-it-breaks) [b](https://x.org/) `x](y z)`";
        assert_eq!(link_targets(text), ["redis.md#when-it-breaks"]);
        assert_eq!(heading_anchors(text).collect::<Vec<_>>(), ["fail-over-and-strict"]);
    }
}
