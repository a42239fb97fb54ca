//! Another process binds the port between the testbed's choice of it and the server's bind.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
};

use leasehold_testbed::{
    Result, Server,
    process::{Binary, Probe, ServerSpec, Workspace},
    redis::{Redis, Reply, RespClient},
};

/// A Redis whose port another listener binds just before the first start. That listener answers
/// PING as Redis does.
struct RedisWithStolenPort {
    stolen_listener: Arc<Mutex<Option<TcpListener>>>,
}

impl ServerSpec for RedisWithStolenPort {
    fn binary(&self) -> Binary {
        Redis::new().binary()
    }
    fn arguments(&self, workspace: &Workspace) -> Vec<String> {
        Redis::new().arguments(workspace)
    }
    fn url(&self, workspace: &Workspace) -> String {
        Redis::new().url(workspace)
    }
    fn probe<'a>(&'a self, workspace: &'a Workspace) -> Probe<'a> {
        Box::pin(async move { Redis::new().probe(workspace).await })
    }
    fn prepare(&self, workspace: &Workspace) -> Result<()> {
        let Ok(mut stolen) = self.stolen_listener.lock() else {
            return Ok(());
        };
        if stolen.is_none() {
            *stolen = TcpListener::bind(workspace.addr()).ok();
            if let Some(thief) = stolen.as_ref().and_then(|thief| thief.try_clone().ok()) {
                thread::spawn(move || answer_like_redis(&thief));
            }
        }
        Ok(())
    }
}

fn answer_like_redis(thief: &TcpListener) {
    for mut victim in thief.incoming().flatten() {
        let mut request = [0; 64];
        while victim.read(&mut request).is_ok_and(|read| read > 0) {
            if victim.write_all(b"+PONG\r\n").is_err() {
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_stolen_port_is_replaced_and_the_thief_is_never_taken_for_the_server() {
    let stolen = Arc::new(Mutex::new(None));
    let robbed = RedisWithStolenPort { stolen_listener: Arc::clone(&stolen) };
    let server = Server::start(robbed).await.unwrap();
    let thief = stolen.lock().unwrap().take().expect("the port was stolen");
    let stolen_addr = thief.local_addr().unwrap();
    assert_ne!(server.addr(), stolen_addr);

    let mut client = RespClient::connect(server.addr()).await.unwrap();
    let Reply::Bulk(info) = client.command(&["INFO", "server"]).await.unwrap() else { panic!("no INFO") };
    let pid = format!("process_id:{}\r\n", server.pid().unwrap());
    assert!(info.contains(&pid), "the server that answers is the started one: {info}");

    // The control: a start that accepts any reply would have taken the other listener for the
    // server.
    let mut client = RespClient::connect(stolen_addr).await.unwrap();
    let pong = client.command(&["PING"]).await.unwrap();
    assert_eq!(pong, Reply::Simple("PONG".to_owned()));
}
