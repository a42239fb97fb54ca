//! Which tokens the fence admits, one transaction after another.

use leasehold::database::Session;
use leasehold::fence::{AdmitError, FenceTable, StaleToken};
use leasehold::{Owner, Token};

use crate::own_tables::fixture::{DatabaseFixture, ISOLATION_LEVELS, IsolationLevel, unique_name};
use crate::own_tables::on_both;

/// Creates a fence with its own table.
pub(crate) async fn create_fence<S: DatabaseFixture>(conn: &mut S::Conn) -> FenceTable {
    let table = FenceTable::with_name(&unique_name("fence")).expect("a name");
    table.create(conn).await.expect("created");
    table.create(conn).await.expect("creating it again does nothing");
    table
}

/// One transaction that only calls `admit`.
async fn admit_once<S: DatabaseFixture>(
    conn: &mut S::Conn,
    fence: &FenceTable,
    resource: &str,
    token: u64,
    level: IsolationLevel,
) -> Result<(), AdmitError> {
    let mut tx = S::begin(conn, level).await;
    let answer = fence.admit(&mut tx, resource, Token(token)).await;
    match &answer {
        Ok(()) => S::commit(tx).await.expect("committed"),
        Err(_) => S::rollback(tx).await,
    }
    answer
}

async fn tokens_never_decrease<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let fence = create_fence::<S>(&mut conn).await;
    for level in ISOLATION_LEVELS {
        let resource = unique_name("r");
        for (token, seen) in [(3, None), (3, None), (2, Some(3)), (7, None), (6, Some(7)), (7, None), (0, Some(7))] {
            let answer = admit_once::<S>(&mut conn, &fence, &resource, token, level).await;
            let stale = answer.as_ref().err().map(|error| error.stale_token().expect("stale and nothing else"));
            assert_eq!(stale, seen.map(|seen| StaleToken { token: Token(token), highest: Token(seen) }), "{level:?}");
        }
    }
}

async fn names_are_compared_as_bytes<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let fence = create_fence::<S>(&mut conn).await;
    let long = "x".repeat(512);
    let names = ["a", "a ", "A", "ä", "a\u{308}", "'", "\\", "%", "ﬀ", "ff", &long, &long[..511]];
    for (index, name) in names.iter().enumerate() {
        admit_once::<S>(&mut conn, &fence, name, 100 - index as u64, IsolationLevel::ReadCommitted).await.expect(name);
    }
    for name in ["", &"x".repeat(513), "a\nb"] {
        let refused = admit_once::<S>(&mut conn, &fence, name, 1, IsolationLevel::ReadCommitted).await;
        assert!(matches!(refused, Err(AdmitError::Invalid(_))), "{name:?}: {refused:?}");
    }
}

/// The data was not written, so the token must not block later holders.
async fn a_transaction_that_is_rolled_back_leaves_no_token<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let fence = create_fence::<S>(&mut conn).await;
    let mut tx = S::begin(&mut conn, IsolationLevel::ReadCommitted).await;
    fence.admit(&mut tx, "r", Token(9)).await.expect("admitted");
    S::rollback(tx).await;
    admit_once::<S>(&mut conn, &fence, "r", 5, IsolationLevel::ReadCommitted).await.expect("token 9 was rolled back");
    let mut tx = S::begin(&mut conn, IsolationLevel::ReadCommitted).await;
    fence.admit(&mut tx, "r", Token(9)).await.expect("admitted");
    drop(tx);
    admit_once::<S>(&mut conn, &fence, "r", 5, IsolationLevel::ReadCommitted)
        .await
        .expect("a dropped transaction is rolled back");
}

async fn a_missing_table_is_reported_with_its_ddl<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let fence = FenceTable::with_name(&unique_name("it's a \"fence`")).expect("a name");
    let missing = admit_once::<S>(&mut conn, &fence, "r", 1, IsolationLevel::ReadCommitted).await;
    let Err(error @ AdmitError::NoTable { .. }) = missing else { panic!("{missing:?}") };
    let text = error.to_string();
    let AdmitError::NoTable { ddl, .. } = error else { unreachable!() };
    assert!(text.contains(&ddl), "{text}");
    assert_eq!(ddl, fence.ddl(S::Conn::DIALECT));
    S::execute(&mut conn, &ddl).await;
    admit_once::<S>(&mut conn, &fence, "r", 1, IsolationLevel::ReadCommitted).await.expect("admitted");
}

async fn the_default_table_is_leasehold_fence<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    leasehold::fence::create_table(&mut conn).await.expect("created");
    let mut tx = S::begin(&mut conn, IsolationLevel::ReadCommitted).await;
    leasehold::fence::admit(&mut tx, "r", Token(4)).await.expect("admitted");
    let stale = leasehold::fence::admit(&mut tx, "r", Token(3)).await.expect_err("stale in the same transaction");
    assert_eq!(stale.stale_token().map(|stale| stale.highest), Some(Token(4)));
    S::commit(tx).await.expect("committed");
}

/// An engine that lost its counter grants the same token twice: the first owner to write wins.
async fn one_token_has_one_owner<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let fence = create_fence::<S>(&mut conn).await;
    let (ann, bob) = (Owner::named("ann"), Owner::named("bob"));
    for (token, owner, passes) in [
        (5, Some(&ann), true),
        (5, Some(&bob), false),
        (5, None, false),
        (5, Some(&ann), true),
        (6, Some(&bob), true),
        (6, Some(&ann), false),
        (7, None, true),
        (7, Some(&ann), false),
        (7, None, true),
    ] {
        let mut tx = S::begin(&mut conn, IsolationLevel::RepeatableRead).await;
        let answer = match owner {
            Some(owner) => fence.admit_owner(&mut tx, "r", Token(token), owner).await,
            None => fence.admit(&mut tx, "r", Token(token)).await,
        };
        assert_eq!(answer.is_ok(), passes, "{token} {owner:?}: {answer:?}");
        assert!(answer.is_ok() || answer.as_ref().is_err_and(|error| error.stale_token().is_some()), "{answer:?}");
        S::commit(tx).await.expect("committed");
    }
}

async fn the_largest_tokens_are_compared_correctly<S: DatabaseFixture>(fixture: S) {
    let mut conn = fixture.connect().await;
    let fence = create_fence::<S>(&mut conn).await;
    let most = i64::MAX as u64;
    for token in [(1 << 53) + 1, most - 1, most] {
        admit_once::<S>(&mut conn, &fence, "r", token, IsolationLevel::ReadCommitted).await.expect("admitted");
        let stale =
            admit_once::<S>(&mut conn, &fence, "r", token - 1, IsolationLevel::ReadCommitted).await.expect_err("stale");
        assert_eq!(stale.stale_token(), Some(StaleToken { token: Token(token - 1), highest: Token(token) }));
    }
    match admit_once::<S>(&mut conn, &fence, "r", u64::MAX, IsolationLevel::ReadCommitted).await {
        Ok(()) => {
            assert!(admit_once::<S>(&mut conn, &fence, "r", u64::MAX - 1, IsolationLevel::ReadCommitted).await.is_err())
        }
        Err(error) => assert!(error.to_string().contains("does not fit"), "{error}"),
    }
}

on_both!(
    tokens_never_decrease,
    names_are_compared_as_bytes,
    a_transaction_that_is_rolled_back_leaves_no_token,
    a_missing_table_is_reported_with_its_ddl,
    the_default_table_is_leasehold_fence,
    one_token_has_one_owner,
    the_largest_tokens_are_compared_correctly,
);
