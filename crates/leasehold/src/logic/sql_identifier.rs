//! Names of tables and columns in SQL statements.

/// The longest name of a table or column that every supported database accepts, in bytes.
pub const MAX_IDENTIFIER_LEN: usize = 63;

/// Checks the name of a column, or of a table with or without its schema (`shop.stock`).
///
/// # Errors
/// A message that describes what is wrong with the name.
pub fn check_identifier(name: &str) -> Result<(), String> {
    for part in name.split('.') {
        if part.is_empty() {
            return Err(format!("{name:?} is not the name of a table or column: a part of it is empty"));
        }
        if part.len() > MAX_IDENTIFIER_LEN {
            return Err(format!(
                "{name:?} is not the name of a table or column: at most {MAX_IDENTIFIER_LEN} bytes, and {part:?} has {}",
                part.len()
            ));
        }
        if part.chars().any(char::is_control) {
            return Err(format!("{name:?} is not the name of a table or column: it has control characters"));
        }
    }
    if name.split('.').count() > 2 {
        return Err(format!("{name:?} is not the name of a table or column: more than a schema and a name"));
    }
    Ok(())
}

/// The name between quotation marks `mark`, its schema and its own name separately
/// (`"shop"."stock"`). A mark inside the name is doubled, so that it cannot end the quotation.
pub fn quote(name: &str, mark: char) -> String {
    let parts = name.split('.').map(|part| {
        let inside: String = part.chars().flat_map(|c| std::iter::repeat_n(c, if c == mark { 2 } else { 1 })).collect();
        format!("{mark}{inside}{mark}")
    });
    parts.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a database reads: the parts between the marks, and the text after them.
    fn read(text: &str, mark: char) -> (Vec<String>, String) {
        let mut parts = Vec::new();
        let mut letters = text.chars().peekable();
        while letters.next_if_eq(&mark).is_some() {
            let mut part = String::new();
            while let Some(letter) = letters.next() {
                if letter == mark && letters.next_if_eq(&mark).is_none() {
                    break;
                }
                part.push(letter);
            }
            parts.push(part);
            if letters.next_if_eq(&'.').is_none() {
                break;
            }
        }
        (parts, letters.collect())
    }

    proptest! {
        #[test]
        fn a_quoted_name_cannot_end_its_quotation(name in "[a\"`';. \\\\-]{1,12}", mark in "[\"`]") {
            prop_assume!(check_identifier(&name).is_ok());
            let mark = mark.chars().next().unwrap();
            let (parts, rest) = read(&(quote(&name, mark) + " rest"), mark);
            prop_assert_eq!(parts.join("."), name);
            prop_assert_eq!(rest, " rest");
        }
    }

    #[test]
    fn names_that_no_database_accepts_are_refused() {
        for name in ["", ".", "a.", "a.b.c", "a\0", "a\nb", &"x".repeat(64)] {
            assert!(check_identifier(name).is_err(), "{name:?}");
        }
        for name in ["stock", "shop.stock", "Order Lines", "größe", &"x".repeat(63)] {
            assert!(check_identifier(name).is_ok(), "{name:?}");
        }
    }
}
