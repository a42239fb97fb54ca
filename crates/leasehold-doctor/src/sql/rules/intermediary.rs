//! Judges poolers and proxies before the server.

use super::super::facts::{Intermediary, Requirements, ServerFacts};
use super::{fail, ok, unknown, warn};
use crate::Finding;

/// Judges whether a pooler in transaction mode is declared in the URL; warns of a proxy.
pub(super) fn judge_intermediary(address: &str, server: &ServerFacts, requirements: &Requirements) -> Finding {
    let check = "pooler";
    match (&server.intermediary, requirements.has_transaction_pooler) {
        (Ok(Intermediary::Direct), false) => ok(check, address, "a connection keeps its session")
            .impact("there is no pooler in transaction mode: prepared statements and channels stay"),
        (Ok(Intermediary::Direct), true) => ok(check, address, "a connection keeps its session, and pooler=transaction is set")
            .impact("the locks are safe; without the option, statements are prepared once, and waiters are notified"),
        (Ok(Intermediary::TransactionPooler), true) => ok(check, address, "each transaction has another session; pooler=transaction is set")
            .impact("no state is kept in a session; waiters poll (poll=)"),
        (Ok(Intermediary::TransactionPooler), false) => {
            fail(check, address, "each transaction has another session: a pooler in transaction mode, such as PgBouncer")
                .impact(
                    "the engine refuses to open: session state (prepared statements, channels) would reach other programs instead of this client",
                )
                .fix("pooler=transaction in the URL; or connect to the server itself; or pool_mode=session")
        }
        (Ok(Intermediary::Proxy(name)), _) => warn(check, address, format!("{name} is between this client and the server"))
            .impact(
                "it may send reads to a replica and writes elsewhere; session state may reach another session",
            )
            .fix("a rule that sends this user's statements to the one server that accepts writes; or connect to that server itself"),
        (Err(reason), _) => unknown(check, address, reason).impact(
            "a pooler in transaction mode gives each transaction another session: without pooler=transaction, locks do not work there",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::UnknownReason;
    use super::super::sample::{assert_level, facts, mariadb, postgres};
    use super::*;
    use crate::Level::{Fail, Ok as Good, Unknown, Warn};

    #[test]
    fn a_transaction_pooler_must_be_declared_in_the_url() {
        let plain = facts(postgres()).requirements;
        let named = Requirements { has_transaction_pooler: true, ..plain.clone() };
        let pooled = ServerFacts { intermediary: Ok(Intermediary::TransactionPooler), ..postgres() };
        assert_level(&judge_intermediary("h", &postgres(), &plain), Good, "keeps its session");
        assert_level(&judge_intermediary("h", &postgres(), &named), Good, "without the option");
        assert_level(&judge_intermediary("h", &pooled, &named), Good, "poll=");
        assert_level(&judge_intermediary("h", &pooled, &plain), Fail, "pooler=transaction in the URL");
        let proxied = ServerFacts { intermediary: Ok(Intermediary::Proxy("ProxySQL")), ..mariadb() };
        assert_level(&judge_intermediary("h", &proxied, &plain), Warn, "ProxySQL is between");
        let hidden = ServerFacts { intermediary: Err(UnknownReason::not_reported("it")), ..postgres() };
        assert_level(&judge_intermediary("h", &hidden, &plain), Unknown, "do not work there");
    }
}
