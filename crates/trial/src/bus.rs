//! Disks behind buses, and how busy both are.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use device::{BoxFuture, Clock, Device, DeviceError, Opener, World};
use parking_lot::Mutex;

/// Transfers one after the other, at a rate.
#[derive(Debug)]
pub(crate) struct Bus {
    read_rate: u64,
    write_rate: u64,
    state: Mutex<BusState>,
}

/// Which way a transfer goes.
#[derive(Debug, Clone, Copy)]
enum Way {
    FromDisk,
    ToDisk,
}

#[derive(Debug, Default)]
struct BusState {
    free_ns: u64,
    busy_ns: u64,
}

impl Bus {
    /// Of so many bytes a second from disks, and to them.
    pub(crate) fn new(read_rate: u64, write_rate: u64) -> Self {
        Bus {
            read_rate: read_rate.max(1),
            write_rate: write_rate.max(1),
            state: Mutex::default(),
        }
    }

    /// Takes the bus for so many bytes. When they are over it, since the world was made.
    fn take(&self, now_ns: u64, bytes: u64, way: Way) -> u64 {
        let rate = match way {
            Way::FromDisk => self.read_rate,
            Way::ToDisk => self.write_rate,
        };
        let took = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let mut state = self.state.lock();
        state.free_ns = state.free_ns.max(now_ns) + took as u64;
        state.busy_ns += took as u64;
        state.free_ns
    }

    /// For how long it was in use, in all.
    pub(crate) fn busy_ns(&self) -> u64 {
        self.state.lock().busy_ns
    }
}

/// How long a disk had something to do.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    state: Mutex<BusyState>,
}

#[derive(Debug, Default)]
struct BusyState {
    under_way: u64,
    since_ns: u64,
    busy_ns: u64,
    /// Reads and writes that were begun, and their bytes.
    transfers: u64,
    bytes: u64,
}

impl Busy {
    /// Of a flush there are no bytes.
    fn begin(&self, now_ns: u64, bytes: u64) {
        let mut state = self.state.lock();
        state.transfers += u64::from(bytes > 0);
        state.bytes += bytes;
        if state.under_way == 0 {
            state.since_ns = now_ns;
        }
        state.under_way += 1;
    }

    fn end(&self, now_ns: u64) {
        let mut state = self.state.lock();
        state.under_way -= 1;
        if state.under_way == 0 {
            state.busy_ns += now_ns - state.since_ns;
        }
    }

    /// In all, until now.
    pub(crate) fn busy_ns(&self, now_ns: u64) -> u64 {
        let state = self.state.lock();
        match state.under_way {
            0 => state.busy_ns,
            _ => state.busy_ns + now_ns - state.since_ns,
        }
    }

    /// Reads and writes so far, and their bytes.
    pub(crate) fn transferred(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.transfers, state.bytes)
    }
}

/// What a disk is connected to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wire {
    pub(crate) bus: Option<Arc<Bus>>,
    pub(crate) busy: Arc<Busy>,
}

/// A world whose disks are on wires, by their names.
pub(crate) fn wired(world: &World, wires: HashMap<String, Wire>) -> World {
    World {
        opener: Arc::new(WiredOpener {
            inner: world.opener.clone(),
            clock: world.clock.clone(),
            wires,
        }),
        ..world.clone()
    }
}

struct WiredOpener {
    inner: Arc<dyn Opener>,
    clock: Arc<dyn Clock>,
    wires: HashMap<String, Wire>,
}

impl Opener for WiredOpener {
    fn open<'a>(
        &'a self,
        path: &'a str,
        read_only: bool,
    ) -> BoxFuture<'a, Result<Arc<dyn Device>, DeviceError>> {
        Box::pin(async move {
            let inner = self.inner.open(path, read_only).await?;
            let Some(wire) = self.wires.get(path).cloned() else {
                return Ok(inner);
            };
            let clock = self.clock.clone();
            let device: Arc<dyn Device> = Arc::new(WiredDevice { inner, clock, wire });
            Ok(device)
        })
    }
}

struct WiredDevice {
    inner: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    wire: Wire,
}

impl std::fmt::Debug for WiredDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

/// An operation under way; it ends when it is dropped, complete or given up.
struct UnderWay<'a>(&'a WiredDevice);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.wire.busy.end(self.0.clock.monotonic_ns());
    }
}

impl WiredDevice {
    fn begin(&self, bytes: u64) -> UnderWay<'_> {
        self.wire.busy.begin(self.clock.monotonic_ns(), bytes);
        UnderWay(self)
    }

    async fn transfer(&self, bytes: u64, way: Way) {
        let Some(bus) = &self.wire.bus else { return };
        let now_ns = self.clock.monotonic_ns();
        let done_ns = bus.take(now_ns, bytes, way);
        let left = Duration::from_nanos(done_ns.saturating_sub(now_ns));
        self.clock.sleep(left).await;
    }
}

impl Device for WiredDevice {
    fn path(&self) -> &str {
        self.inner.path()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn sector_bytes(&self) -> u32 {
        self.inner.sector_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn keep_writers_out(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        self.inner.keep_writers_out()
    }

    fn look_again(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        self.inner.look_again()
    }

    fn read(
        &self,
        offset_bytes: u64,
        length_bytes: usize,
    ) -> BoxFuture<'_, Result<Bytes, DeviceError>> {
        Box::pin(async move {
            let under_way = self.begin(length_bytes as u64);
            let data = self.inner.read(offset_bytes, length_bytes).await?;
            // The disk may do the next one while the data waits for the bus.
            drop(under_way);
            self.transfer(length_bytes as u64, Way::FromDisk).await;
            Ok(data)
        })
    }

    fn write(&self, offset_bytes: u64, data: Bytes) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            let bytes = data.len() as u64;
            self.transfer(bytes, Way::ToDisk).await;
            let _under_way = self.begin(bytes);
            self.inner.write(offset_bytes, data).await
        })
    }

    fn write_vectored(
        &self,
        offset_bytes: u64,
        parts: Vec<Bytes>,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            let bytes = parts.iter().map(|part| part.len() as u64).sum();
            self.transfer(bytes, Way::ToDisk).await;
            let _under_way = self.begin(bytes);
            self.inner.write_vectored(offset_bytes, parts).await
        })
    }

    fn outstanding(&self) -> usize {
        self.inner.outstanding()
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            let _under_way = self.begin(0);
            self.inner.flush().await
        })
    }

    fn write_durable(
        &self,
        offset_bytes: u64,
        data: Bytes,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        Box::pin(async move {
            let bytes = data.len() as u64;
            self.transfer(bytes, Way::ToDisk).await;
            let _under_way = self.begin(bytes);
            self.inner.write_durable(offset_bytes, data).await
        })
    }

    fn supports_discard(&self) -> bool {
        self.inner.supports_discard()
    }

    fn discard(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> BoxFuture<'_, Result<(), DeviceError>> {
        self.inner.discard(offset_bytes, length_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_wait_for_each_other() {
        let bus = Bus::new(1_000_000, 500_000);
        assert_eq!(bus.take(0, 1000, Way::FromDisk), 1_000_000);
        assert_eq!(bus.take(500_000, 1000, Way::FromDisk), 2_000_000);
        // It was idle meanwhile.
        assert_eq!(bus.take(5_000_000, 500, Way::ToDisk), 6_000_000);
        assert_eq!(bus.busy_ns(), 3_000_000);
    }

    #[test]
    fn a_disk_is_busy_while_it_has_something_to_do() {
        let busy = Busy::default();
        busy.begin(100, 4096);
        busy.begin(200, 0);
        busy.end(300);
        assert_eq!(busy.busy_ns(350), 250);
        busy.end(400);
        assert_eq!(busy.busy_ns(1000), 300);
        assert_eq!(busy.transferred(), (1, 4096));
    }
}
