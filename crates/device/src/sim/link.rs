//! A network link in the simulated world, between clients and the server.

use parking_lot::Mutex;

use super::SimWorld;
use super::model::{Link, LinkSpec};

/// A full-duplex link: what goes one way does not slow what goes the other way.
#[derive(Debug)]
pub struct SimLink {
    world: SimWorld,
    to_server: Mutex<Link>,
    to_client: Mutex<Link>,
}

impl SimLink {
    /// An idle link in a world; both directions are alike.
    pub fn new(world: &SimWorld, spec: &LinkSpec) -> Self {
        SimLink {
            world: world.clone(),
            to_server: Mutex::new(Link::new(spec)),
            to_client: Mutex::new(Link::new(spec)),
        }
    }

    async fn send(&self, link: &Mutex<Link>, bytes: u64) {
        let now_ns = self.world.elapsed_ns();
        let arrived_ns = link.lock().send(now_ns, bytes);
        self.world.sleep_until_ns(arrived_ns).await;
    }

    /// Sends a message of so many bytes to the server; complete when it is there.
    pub async fn to_server(&self, bytes: u64) {
        self.send(&self.to_server, bytes).await;
    }

    /// Sends a message of so many bytes to the client; complete when it is there.
    pub async fn to_client(&self, bytes: u64) {
        self.send(&self.to_client, bytes).await;
    }

    /// Bytes that went over the wire, to the server and to the client.
    pub fn sent_bytes(&self) -> (u64, u64) {
        (
            self.to_server.lock().sent_bytes(),
            self.to_client.lock().sent_bytes(),
        )
    }
}
