//! Parses HTML and SVG for the tests, more strictly than a browser: every tag must be closed and
//! nested correctly.

/// Tags that have no end tag.
const VOID_TAGS: [&str; 3] = ["meta", "br", "!doctype"];

/// All start tags of a page, each with its attributes as text.
///
/// # Panics
/// If an end tag has no start tag, if a tag is not closed, or if a tag occurs where only text is
/// allowed.
pub(crate) fn tags(page: &str) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    let mut all = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>') || is_raw_text(&open), "a stray > in {:?}", &rest[..at]);
        rest = &rest[at + 1..];
        let end = find_tag_end(rest);
        let tag = &rest[..end];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default().to_ascii_lowercase();
        assert!(name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '!'), "no tag: <{tag}>");
        rest = &rest[end + 1..];
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(name.as_str()), "</{name}> closes another one");
            continue;
        }
        all.push(tag.to_owned());
        if VOID_TAGS.contains(&name.as_str()) || tag.ends_with('/') {
            continue;
        }
        if name == "script" || name == "style" {
            // A script or style contains only text, up to the first end tag of its name.
            let end = rest.find(&format!("</{name}")).expect("the end of a script");
            rest = &rest[end..];
        }
        open.push(name);
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    all
}

/// Whether the innermost open tag contains only text: `script` or `style`.
fn is_raw_text(open: &[String]) -> bool {
    open.last().is_some_and(|name| name == "script" || name == "style")
}

/// The position of the `>` that ends a tag, outside of quotes.
fn find_tag_end(rest: &str) -> usize {
    let mut quoted = false;
    for (at, c) in rest.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '>' if !quoted => return at,
            '<' if quoted => panic!("a < in an attribute: {:?}", &rest[..at]),
            _ => {}
        }
    }
    panic!("a tag without an end: {rest:?}");
}

#[test]
fn broken_markup_is_detected() {
    let fails = |page: &'static str| std::panic::catch_unwind(|| tags(page)).is_err();
    assert!(fails("<p><b>x</p></b>") && fails("<p>") && fails("</p>") && fails("<p title=\"<b>\">x</p>"));
    assert!(fails("<script>let a = \"</script><b>\";</script>"), "markup that breaks out of a script is detected");
    assert_eq!(tags("<p>x<br>y</p><i/>"), ["p", "br", "i/"]);
}
