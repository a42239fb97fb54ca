//! Somebody takes the port between our choice and the server's bind.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::{Arc, Mutex},
    thread,
};

use leasehold_testbed::{
    Result, Server,
    process::{Binary, Place, Probe, Recipe},
    redis::{Redis, Reply, Resp},
};

/// Redis, but in the last moment before the first start a thief takes the port, who answers PING
/// just as Redis does.
struct Robbed {
    stolen: Arc<Mutex<Option<TcpListener>>>,
}

impl Recipe for Robbed {
    fn binary(&self) -> Binary {
        Redis::new().binary()
    }
    fn arguments(&self, place: &Place) -> Vec<String> {
        Redis::new().arguments(place)
    }
    fn url(&self, place: &Place) -> String {
        Redis::new().url(place)
    }
    fn probe<'a>(&'a self, place: &'a Place) -> Probe<'a> {
        Box::pin(async move { Redis::new().probe(place).await })
    }
    fn prepare(&self, place: &Place) -> Result<()> {
        let Ok(mut stolen) = self.stolen.lock() else {
            return Ok(());
        };
        if stolen.is_none() {
            *stolen = TcpListener::bind(place.addr()).ok();
            if let Some(thief) = stolen.as_ref().and_then(|thief| thief.try_clone().ok()) {
                thread::spawn(move || pretend(&thief));
            }
        }
        Ok(())
    }
}

fn pretend(thief: &TcpListener) {
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
async fn another_port_is_taken_and_the_thief_is_never_mistaken_for_the_server() {
    let stolen = Arc::new(Mutex::new(None));
    let robbed = Robbed { stolen: Arc::clone(&stolen) };
    let server = Server::start(robbed).await.unwrap();
    let thief = stolen.lock().unwrap().take().expect("the port was stolen");
    let stolen_addr = thief.local_addr().unwrap();
    assert_ne!(server.addr(), stolen_addr);

    let mut client = Resp::connect(server.addr()).await.unwrap();
    let Reply::Bulk(info) = client.command(&["INFO", "server"]).await.unwrap() else { panic!("no INFO") };
    let pid = format!("process_id:{}\r\n", server.pid().unwrap());
    assert!(info.contains(&pid), "the server that answers is ours: {info}");

    // The control: a start that believes any answer would have been content with the thief.
    let mut client = Resp::connect(stolen_addr).await.unwrap();
    let pong = client.command(&["PING"]).await.unwrap();
    assert_eq!(pong, Reply::Simple("PONG".to_owned()));
}
