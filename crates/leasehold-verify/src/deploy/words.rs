//! Servers in words, numbered from one.

/// `one` if there is only one; otherwise `many` with their numbers.
pub(super) fn servers(one: &str, many: &str, hit: &[usize], all: usize) -> String {
    match hit {
        _ if all == 1 => one.to_owned(),
        hit if hit.len() == all => format!("{many} all {all} servers"),
        [only] => format!("{many} {}", server(*only, all)),
        hit => {
            let numbers: Vec<String> = hit.iter().map(|at| (at + 1).to_string()).collect();
            format!("{many} servers {} of {all}", numbers.join(", "))
        }
    }
}

/// The description of one of several servers.
pub(super) fn server(at: usize, all: usize) -> String {
    format!("server {} of {all}", at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_are_hit() {
        assert_eq!(servers("the server", "", &[0], 1), "the server");
        assert_eq!(servers("", "the lines to", &[0, 1, 2], 3), "the lines to all 3 servers");
        assert_eq!(servers("", "the lines to", &[1], 5), "the lines to server 2 of 5");
        assert_eq!(servers("", "the lines to", &[1, 4], 5), "the lines to servers 2, 5 of 5");
    }
}
