//! Names servers in the descriptions of faults, numbered from 1.

/// Names the servers with these indices of `count`: `single` if there is only one server in all,
/// otherwise `prefix` with their numbers, such as `PREFIX servers 2, 5 of 5`.
pub(super) fn server_list(single: &str, prefix: &str, hit: &[usize], count: usize) -> String {
    match hit {
        _ if count == 1 => single.to_owned(),
        hit if hit.len() == count => format!("{prefix} all {count} servers"),
        [only] => format!("{prefix} {}", server_name(*only, count)),
        hit => {
            let numbers: Vec<String> = hit.iter().map(|at| (at + 1).to_string()).collect();
            format!("{prefix} servers {} of {count}", numbers.join(", "))
        }
    }
}

/// Names one of several servers by its index: `server 2 of 5`.
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
