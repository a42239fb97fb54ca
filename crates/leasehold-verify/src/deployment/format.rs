//! Servers in words, numbered from one.

/// `one` if there is only one; otherwise `many` with their numbers.
pub(super) fn server_list(one: &str, many: &str, hit: &[usize], all: usize) -> String {
    match hit {
        _ if all == 1 => one.to_owned(),
        hit if hit.len() == all => format!("{many} all {all} servers"),
        [only] => format!("{many} {}", server_name(*only, all)),
        hit => {
            let numbers: Vec<String> = hit.iter().map(|at| (at + 1).to_string()).collect();
            format!("{many} servers {} of {all}", numbers.join(", "))
        }
    }
}

/// The description of one of several servers.
pub(super) fn server_name(index: usize, count: usize) -> String {
    format!("server {} of {count}", index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_lists_are_numbered_from_one() {
        assert_eq!(server_list("the server", "", &[0], 1), "the server");
        assert_eq!(server_list("", "the connections to", &[0, 1, 2], 3), "the connections to all 3 servers");
        assert_eq!(server_list("", "the connections to", &[1], 5), "the connections to server 2 of 5");
        assert_eq!(server_list("", "the connections to", &[1, 4], 5), "the connections to servers 2, 5 of 5");
    }
}
