//! MariaDB as a Galera cluster.

use leasehold_testbed::mariadb::{GaleraCluster, MariaDb};
use leasehold_testbed::{Server, eventually};

use crate::common::TEST_TIMEOUT;
use crate::common::doctor_report::{assert_finding, doctor_report, findings_of};
use crate::doctor_sql::{acquire_and_release, checks_except_latency, multi_host_url, text_of};

#[tokio::test]
async fn a_galera_cluster_needs_the_clock_skew_option() {
    let galera = GaleraCluster::start_with(3, &MariaDb::new().fsync()).await.unwrap();
    let servers: Vec<&Server> = galera.servers().iter().collect();
    let url = multi_host_url(&servers);
    acquire_and_release(&url).await;
    let (code, bare) = doctor_report(&url).await;
    assert_eq!((code, checks_except_latency(&bare, "fail")), (1, vec![]), "{bare:#}");
    assert!(text_of(assert_finding(&bare, "galera", "warn"), "fix").contains("clock-skew=1s"), "{bare:#}");
    assert!(text_of(assert_finding(&bare, "galera", "warn"), "found").contains("3 nodes"), "{bare:#}");
    assert_finding(&bare, "writers", "ok");
    let (_, roomy) = doctor_report(&format!("{url}?clock-skew=1s")).await;
    assert_eq!(checks_except_latency(&roomy, "warn"), [""; 0], "{roomy:#}");
    assert_eq!(findings_of(&roomy, "lock-row").len(), 3, "{roomy:#}");
    assert_finding(&roomy, "clocks", "ok");
    let (_, session) = doctor_report(&format!("{url}?technique=session")).await;
    assert!(text_of(assert_finding(&session, "galera", "fail"), "fix").contains("technique=row"), "{session:#}");
    galera.cut_off(2).await.unwrap();
    let alone = format!("{}?clock-skew=1s", galera.server(2).url());
    eventually(TEST_TIMEOUT, || async {
        let (code, report) = doctor_report(&alone).await;
        let cut = findings_of(&report, "galera").first().is_some_and(|finding| finding["level"] == "fail");
        if cut && code == 2 { Ok(()) } else { Err(format!("{report:#}")) }
    })
    .await;
}
