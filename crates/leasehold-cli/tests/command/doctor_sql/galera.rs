//! MariaDB as a Galera cluster.

use leasehold_testbed::mariadb::{Galera, MariaDb};
use leasehold_testbed::{Server, eventually};

use crate::common::BOUND;
use crate::common::examined::{found, of, report};
use crate::doctor_sql::{all, says, take, together};

#[tokio::test]
async fn a_galera_cluster_needs_room_between_its_clocks() {
    let galera = Galera::of(3, &MariaDb::new().sync()).await.unwrap();
    let servers: Vec<&Server> = galera.servers().iter().collect();
    let url = together(&servers);
    take(&url).await;
    let (code, bare) = report(&url).await;
    assert_eq!((code, all(&bare, "fail")), (1, vec![]), "{bare:#}");
    assert!(says(found(&bare, "galera", "warn"), "fix").contains("clock-skew=1s"), "{bare:#}");
    assert!(says(found(&bare, "galera", "warn"), "found").contains("3 nodes"), "{bare:#}");
    found(&bare, "writers", "ok");
    let (_, roomy) = report(&format!("{url}?clock-skew=1s")).await;
    assert_eq!(all(&roomy, "warn"), [""; 0], "{roomy:#}");
    assert_eq!(of(&roomy, "lock-row").len(), 3, "{roomy:#}");
    found(&roomy, "clocks", "ok");
    let (_, session) = report(&format!("{url}?technique=session")).await;
    assert!(says(found(&session, "galera", "fail"), "fix").contains("technique=row"), "{session:#}");
    galera.cut_off(2).await.unwrap();
    let alone = format!("{}?clock-skew=1s", galera.server(2).url());
    eventually(BOUND, || async {
        let (code, report) = report(&alone).await;
        let cut = of(&report, "galera").first().is_some_and(|finding| finding["level"] == "fail");
        if cut && code == 2 { Ok(()) } else { Err(format!("{report:#}")) }
    })
    .await;
}
