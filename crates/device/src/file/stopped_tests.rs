//! Goal: a file whose server does not answer keeps nobody waiting but who asks it. Method: a file
//! of a small FUSE filesystem, which stops answering on a word; without the right to mount, there
//! is nothing to test.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use oracles::StoppableFile;
use tempfile::TempDir;

use super::tests::{engines, new_file, runtime};
use super::*;

const SIZE: usize = 32 << 20;
/// Longer than anything takes that does not wait for the stopped server.
const PATIENCE: Duration = Duration::from_secs(120);

fn options(engine: IoEngine, direct: bool) -> FileOptions {
    FileOptions {
        engine,
        direct: Some(direct),
        ..FileOptions::default()
    }
}

/// All that can be asked of a device, more of it than there are threads anywhere.
async fn use_all(device: &FileDevice) {
    let (small, large) = (Bytes::from(vec![5; 4096]), Bytes::from(vec![6; 1 << 20]));
    for round in 0..100u64 {
        let at = round * 4096;
        device.write(at, small.clone()).await.expect("written");
        device
            .write(at + 1, small.slice(..99))
            .await
            .expect("written");
        assert_eq!(
            device.read(at, 4096).await.expect("read")[1..99],
            small[1..99]
        );
        device.read(at + 513, 700).await.expect("read");
    }
    device.write(8 << 20, large.clone()).await.expect("written");
    device.discard(8 << 20, 4096).await.expect("discarded");
    device.write_durable(0, small).await.expect("durable");
    device.flush().await.expect("flushed");
    device.look_again().await.expect("it is there");
}

/// Every engine, both ways: 600 operations wait for a server that is stopped; other devices are
/// opened, used, held, closed; the stopped one is closed and asked for again. Then it answers, and
/// nothing was lost.
#[test]
fn a_server_that_is_stopped_stops_no_other_device() {
    let Some(mounted) = StoppableFile::mount(SIZE) else {
        return;
    };
    let directory = TempDir::new().unwrap();
    for engine in engines() {
        for direct in [true, false] {
            let options = options(engine, direct);
            let before = FileDevice::open(new_file(&directory, SIZE as u64), &options).unwrap();
            let hung = FileDevice::open(mounted.path(), &options).unwrap();
            let hung = Arc::new(hung);
            // After the devices, so that a failure leaves no thread that waits.
            let runtime = runtime();
            runtime.block_on(async {
                use_all(&hung).await;
                mounted.set_stopped(true);
                let mut waiting = tokio::task::JoinSet::new();
                for index in 0..200u64 {
                    let (at, device) = (index * 8192, hung.clone());
                    waiting.spawn(async move {
                        let data = Bytes::from(vec![index as u8; 4096]);
                        device.write(at, data).await.expect("written");
                    });
                    let device = hung.clone();
                    waiting.spawn(async move { device.flush().await.expect("flushed") });
                    let device = hung.clone();
                    waiting.spawn(async move {
                        device.read((16 << 20) + at, 4096).await.expect("read");
                    });
                }
                // A word for each of the tasks, so that they have begun.
                while hung.outstanding() < 600 {
                    tokio::task::yield_now().await;
                }
                let opening = FileDevice::open_async(mounted.path(), options.clone());
                let opening = tokio::spawn(opening);
                let others = async {
                    use_all(&before).await;
                    let path = new_file(&directory, SIZE as u64);
                    let hold = FileDevice::hold(path.clone()).await.expect("held");
                    FileDevice::lend(path.clone()).await;
                    let late = FileDevice::open_async(path, options.clone()).await;
                    let late = late.expect("opened");
                    use_all(&late).await;
                    drop((late, hold));
                    assert!(!opening.is_finished());
                };
                let others = tokio::time::timeout(PATIENCE, others).await;
                others.unwrap_or_else(|_| {
                    panic!("others wait as well ({engine:?}, {direct})");
                });
                mounted.set_stopped(false);
                // The lock is the other's.
                let opened = opening.await.expect("it comes back");
                assert!(matches!(opened, Err(DeviceError::InUse { .. })));
                while let Some(done) = waiting.join_next().await {
                    done.expect("answered");
                }
                for index in 0..200u64 {
                    let data = hung.read(index * 8192, 4096).await.expect("read");
                    assert!(data.iter().all(|byte| *byte == index as u8));
                }
                assert_eq!(hung.outstanding(), 0);
            });
        }
    }
}

/// Whoever lets go of a device that is not answering is not kept: not with operations under way,
/// nor without.
#[test]
fn a_device_that_does_not_answer_can_be_let_go_of() {
    let Some(mounted) = StoppableFile::mount(SIZE) else {
        return;
    };
    for engine in engines() {
        for under_way in [true, false] {
            let device = FileDevice::open(mounted.path(), &options(engine, true)).unwrap();
            mounted.set_stopped(true);
            if under_way {
                let waker = std::task::Waker::noop();
                let mut context = std::task::Context::from_waker(waker);
                let mut read = device.read(0, 4096);
                assert!(read.as_mut().poll(&mut context).is_pending());
            }
            let (send, receive) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                drop(device);
                send.send(()).expect("somebody waits");
            });
            assert_eq!(receive.recv_timeout(PATIENCE), Ok(()));
            mounted.set_stopped(false);
        }
    }
}
