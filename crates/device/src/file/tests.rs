//! Both engines against real files: same results, same errors.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// The engines that this system has: io_uring may be forbidden.
pub(super) fn engines() -> Vec<IoEngine> {
    let mut engines = vec![IoEngine::Blocking];
    if uring::is_available() {
        engines.push(IoEngine::Uring);
    }
    engines
}

fn options(engine: IoEngine, direct: bool) -> FileOptions {
    FileOptions {
        engine,
        direct: Some(direct),
        ..FileOptions::default()
    }
}

pub(super) fn new_file(dir: &TempDir, size_bytes: u64) -> String {
    let path = dir.path().join(format!("disk{}", rand_name()));
    create_sparse_file(&path, size_bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

fn rand_name() -> u64 {
    use crate::Random;
    crate::SystemRandom.next_u64()
}

/// Runs `test` for each engine, with and without direct I/O.
fn for_each<F, Fut>(size_bytes: u64, test: F)
where
    F: Fn(FileDevice, String) -> Fut,
    Fut: Future<Output = ()>,
{
    let dir = TempDir::new().unwrap();
    let runtime = runtime();
    for engine in engines() {
        for direct in [false, true] {
            let path = new_file(&dir, size_bytes);
            let device = FileDevice::open(path.clone(), &options(engine, direct)).unwrap();
            assert_eq!(device.uses_uring(), engine == IoEngine::Uring);
            runtime.block_on(test(device, path));
        }
    }
}

/// Who does not wait for an operation any more can tell when it was done: until then the device has
/// its memory and its descriptors.
#[test]
fn operations_that_nobody_waits_for_are_done_and_counted() {
    for_each(8 << 20, |device, _| async move {
        for round in 0..20u8 {
            let data = Bytes::from(vec![round + 1; 4 << 20]);
            let mut write = device.write(4096, data.clone());
            let mut read = device.read(0, 4 << 20);
            // They may be done by now.
            let _ = (futures::poll!(&mut write), futures::poll!(&mut read));
            drop((write, read, data));
            while device.outstanding() > 0 {
                assert!(device.outstanding() <= 2);
                tokio::task::yield_now().await;
            }
            let found = device.read(4096, 4 << 20).await.unwrap();
            assert!(found.iter().all(|byte| *byte == round + 1));
        }
    });
}

/// Who has the answers to all operations may close the device and open it again at once: nothing
/// has its descriptors any more.
#[test]
fn what_is_answered_is_not_outstanding() {
    for_each(1 << 20, |device, _| async move {
        for round in 0..2000u64 {
            let data = Bytes::from(vec![round as u8; 4096]);
            match round % 3 {
                0 => device.write(4096, data).await.unwrap(),
                1 => device.write_durable(4096, data).await.unwrap(),
                _ => drop(device.read(4096, 512).await.unwrap()),
            }
            assert_eq!(device.outstanding(), 0, "{round}");
        }
    });
}

#[test]
fn a_durable_write_is_in_the_file_whatever_makes_it_durable() {
    for_each(1 << 20, |mut device, path| async move {
        for durability in [Durability::AtOnce, Durability::ByFlush] {
            device.durability = durability;
            for (offset, length) in [(0, 4096), (8192, 512), (65_537, 10_000), (4096, 0)] {
                let fill = length as u8 | (1 + u8::from(durability == Durability::ByFlush));
                let data = Bytes::from(vec![fill; length]);
                device.write_durable(offset, data.clone()).await.unwrap();
                assert_eq!(device.read(offset, length).await.unwrap(), data);
                let raw = std::fs::read(&path).unwrap();
                assert_eq!(raw[offset as usize..][..length], data);
            }
            let data = Bytes::from(vec![1; 4096]);
            let error = device.write_durable(1 << 20, data).await.unwrap_err();
            assert!(matches!(error, DeviceError::OutOfRange { .. }));
        }
    });
}

/// A write that was put together in a [`WriteBuffer`] goes to the file from there.
#[test]
fn what_was_put_together_is_not_copied() {
    for_each(1 << 20, |device, _| async move {
        let mut buffer = WriteBuffer::with_capacity(8192);
        buffer.append(&[7; 5000]);
        buffer.resize(8192);
        let data = buffer.into_bytes();
        assert!(device.memory_is_aligned(std::slice::from_ref(&data)));
        device.write_durable(4096, data.clone()).await.unwrap();
        assert_eq!(device.read(4096, 8192).await.unwrap(), data);
    });
}

#[test]
fn what_is_written_is_read_and_is_in_the_file() {
    for_each(1 << 20, async |device, path| {
        assert_eq!(device.size_bytes(), 1 << 20);
        let data = Bytes::from((0..40_000u32).map(|n| (n % 251) as u8).collect::<Vec<_>>());
        for offset in [0u64, 4096, 300_001, (1 << 20) - 40_000] {
            device.write(offset, data.clone()).await.unwrap();
            assert_eq!(device.read(offset, data.len()).await.unwrap(), data);
        }
        device.flush().await.unwrap();
        let raw = std::fs::read(path).unwrap();
        assert_eq!(raw[300_001..340_001], data);
        assert_eq!(raw.len(), 1 << 20);
    });
}

#[test]
fn vectored_writes_land_in_order() {
    for_each(1 << 20, async |device, _| {
        let part = |byte: u8, length: usize| Bytes::from(vec![byte; length]);
        let cases: Vec<Vec<Bytes>> = vec![
            vec![part(1, 4096), part(2, 8192)],
            vec![part(3, 5), Bytes::new(), part(4, 511), part(5, 3580)],
            (0..3000u32).map(|n| part(n as u8, 3)).collect(),
            vec![],
        ];
        for parts in cases {
            let whole = parts.concat();
            device.write_vectored(8192, parts).await.unwrap();
            assert_eq!(device.read(8192, whole.len()).await.unwrap(), whole);
        }
    });
}

#[test]
fn many_operations_in_flight_all_complete() {
    for_each(64 << 20, async |device, _| {
        let device = Arc::new(device);
        let tasks: Vec<_> = (0..4000u64)
            .map(|index| {
                let device = device.clone();
                tokio::spawn(async move {
                    let offset = index * 16384;
                    let data = Bytes::from(vec![(index % 255) as u8 + 1; 4096]);
                    device.write(offset, data.clone()).await.unwrap();
                    assert_eq!(device.read(offset, 4096).await.unwrap(), data);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn a_dropped_write_still_owns_its_memory() {
    for_each(8 << 20, async |device, _| {
        for index in 0..200u64 {
            let data = Bytes::from(vec![0xa5; 32768]);
            let mut write = device.write(index * 32768, data);
            // Poll once, so that it is issued, then give up.
            let waker = std::task::Waker::noop();
            let mut context = std::task::Context::from_waker(waker);
            let _ = write.as_mut().poll(&mut context);
        }
        device.flush().await.unwrap();
        // Later operations see either state of each block, never garbage.
        for index in 0..200u64 {
            let seen = device.read(index * 32768, 32768).await.unwrap();
            let first = seen[0];
            assert!(first == 0 || first == 0xa5);
        }
    });
}

#[test]
fn discarded_ranges_read_as_zeros_and_give_back_room() {
    for_each(4 << 20, async |device, path| {
        device
            .write(0, Bytes::from(vec![7; 4 << 20]))
            .await
            .unwrap();
        device.flush().await.unwrap();
        device.discard(1 << 20, 2 << 20).await.unwrap();
        let seen = device.read(0, 4 << 20).await.unwrap();
        assert!(seen[..1 << 20].iter().all(|byte| *byte == 7));
        assert!(seen[3 << 20..].iter().all(|byte| *byte == 7));
        use std::os::unix::fs::MetadataExt;
        // Filesystems without holes ignore the hint.
        if std::fs::metadata(&path).unwrap().blocks() * 512 < 4 << 20 {
            assert!(seen[1 << 20..3 << 20].iter().all(|byte| *byte == 0));
        }
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 << 20);
    });
}

#[test]
fn reaching_past_the_end_is_refused_and_does_not_grow_the_file() {
    for_each(10_000, async |device, path| {
        let past = |result: Result<(), DeviceError>, op: &str| match result {
            Err(DeviceError::OutOfRange {
                op: found,
                size_bytes: 10_000,
                ..
            }) => assert_eq!(found, op),
            other => panic!("{other:?}"),
        };
        past(device.read(9_999, 2).await.map(drop), "read");
        past(device.read(u64::MAX, 2).await.map(drop), "read");
        past(
            device.write(10_000, Bytes::from_static(b"x")).await,
            "write",
        );
        past(device.discard(0, 10_001).await, "discard");
        device.read(9_999, 1).await.unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().len(), 10_000);
    });
}

#[test]
fn a_file_that_shrank_is_reported_as_such() {
    for_each(1 << 20, async |device, path| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(8192).unwrap();
        assert!(matches!(
            device.read(4096, 65536).await,
            Err(DeviceError::OutOfRange {
                size_bytes: 8192,
                ..
            })
        ));
        assert_eq!(device.read(0, 8192).await.unwrap().len(), 8192);
    });
}

#[test]
fn a_second_writer_is_refused_until_the_first_is_gone() {
    let dir = TempDir::new().unwrap();
    let path = new_file(&dir, 8192);
    let first = FileDevice::open(path.clone(), &FileOptions::default()).unwrap();
    assert!(matches!(
        FileDevice::open(path.clone(), &FileOptions::default()),
        Err(DeviceError::InUse { .. })
    ));
    let read_only = FileOptions {
        read_only: true,
        ..FileOptions::default()
    };
    FileDevice::open(path.clone(), &read_only).unwrap();
    assert!(super::is_held(&path));
    drop(first);
    assert!(!super::is_held(&path));
    FileDevice::open(path, &FileOptions::default()).unwrap();
}

#[test]
fn a_reader_who_asks_for_it_keeps_writers_out() {
    let dir = TempDir::new().unwrap();
    let path = new_file(&dir, 8192);
    let runtime = runtime();
    let read_only = FileOptions {
        read_only: true,
        ..FileOptions::default()
    };
    let open = |options: &FileOptions| FileDevice::open(path.clone(), options);
    let readers = [open(&read_only).unwrap(), open(&read_only).unwrap()];
    for reader in &readers {
        runtime.block_on(reader.keep_writers_out()).unwrap();
    }
    let refused = open(&FileOptions::default());
    assert!(matches!(refused, Err(DeviceError::InUse { .. })));
    assert!(!super::is_held(&path), "by somebody who writes");
    drop(readers);
    let writer = open(&FileOptions::default()).unwrap();
    runtime.block_on(writer.keep_writers_out()).unwrap();
    let late = open(&read_only).unwrap();
    let refused = runtime.block_on(late.keep_writers_out());
    assert!(matches!(refused, Err(DeviceError::InUse { .. })));
}

#[test]
fn read_only_devices_refuse_changes() {
    let dir = TempDir::new().unwrap();
    let runtime = runtime();
    for engine in engines() {
        let path = new_file(&dir, 8192);
        let read_only = FileOptions {
            read_only: true,
            engine,
            ..FileOptions::default()
        };
        let device = FileDevice::open(path, &read_only).unwrap();
        runtime.block_on(async {
            assert!(device.is_read_only());
            let data = Bytes::from_static(b"no");
            assert!(matches!(
                device.write(0, data).await,
                Err(DeviceError::Io { op: "write", .. })
            ));
            assert!(device.discard(0, 512).await.is_err());
            device.flush().await.unwrap();
            device.read(0, 8192).await.unwrap();
        });
    }
}

#[test]
fn what_is_no_device_is_not_opened() {
    let dir = TempDir::new().unwrap();
    let open = |path: &str| FileDevice::open(path, &FileOptions::default());
    let directory = dir.path().to_str().unwrap();
    assert!(matches!(open(directory), Err(DeviceError::Open { .. })));
    assert!(matches!(open("/dev/null"), Err(DeviceError::Open { .. })));
    let missing = format!("{directory}/missing");
    match open(&missing) {
        Err(DeviceError::Open { source, .. }) => {
            assert_eq!(source.kind(), io::ErrorKind::NotFound);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn it_works_without_a_tokio_runtime() {
    let dir = TempDir::new().unwrap();
    let path = new_file(&dir, 1 << 20);
    let opener = crate::SystemOpener::default();
    use crate::Opener;
    futures_block_on(async {
        let device = opener.open(&path, false).await.unwrap();
        let data = Bytes::from(vec![9; 4096]);
        device.write(4096, data.clone()).await.unwrap();
        device.flush().await.unwrap();
        assert_eq!(device.read(4096, 4096).await.unwrap(), data);
    });
}

/// A loop device over a file, where this user may make one.
struct LoopDevice(String);

impl LoopDevice {
    fn over(path: &str) -> Option<Self> {
        let made = std::process::Command::new("losetup")
            .args(["--find", "--show", path])
            .output()
            .ok()?;
        let name = String::from_utf8(made.stdout).ok()?.trim().to_owned();
        (made.status.success() && !name.is_empty()).then_some(LoopDevice(name))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup")
            .args(["--detach", &self.0])
            .status();
    }
}

#[test]
fn block_devices_go_around_the_page_cache() {
    let dir = TempDir::new().unwrap();
    let path = new_file(&dir, 8 << 20);
    let Some(disk) = LoopDevice::over(&path) else {
        // Only root may make block devices, and not everywhere.
        return;
    };
    let runtime = runtime();
    for engine in engines() {
        let options = FileOptions {
            engine,
            ..FileOptions::default()
        };
        let device = FileDevice::open(disk.0.clone(), &options).unwrap();
        assert_eq!(device.size_bytes(), 8 << 20);
        assert!(matches!(
            FileDevice::open(disk.0.clone(), &options),
            Err(DeviceError::InUse { .. })
        ));
        runtime.block_on(async {
            let data = Bytes::from(vec![7; 1 << 20]);
            device.write(0, data.clone()).await.unwrap();
            // Neither place, length nor memory aligned; in one piece and in several.
            device.write(4097, data.slice(1..1002)).await.unwrap();
            let parts = vec![data.slice(..100), data.slice(3..4095)];
            device.write_vectored(8192, parts).await.unwrap();
            device.flush().await.unwrap();
            assert_eq!(device.read(0, 1 << 20).await.unwrap(), data);
            assert_eq!(device.read(513, 77).await.unwrap(), data[..77]);
            device.discard(0, 1 << 19).await.unwrap();
            let seen = device.read(0, 1 << 20).await.unwrap();
            assert!(seen[1 << 19..].iter().all(|byte| *byte == 7));
            assert!(matches!(
                device.read((8 << 20) - 1, 2).await,
                Err(DeviceError::OutOfRange { .. })
            ));
        });
    }
}

/// A minimal executor, to show that no runtime is needed.
fn futures_block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::park();
    }
}

#[derive(Debug, Clone)]
enum Step {
    Write(u64, Vec<u8>),
    Vectored(u64, Vec<Vec<u8>>),
    Read(u64, usize),
    Discard(u64, u64),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    let offset = prop_oneof![0u64..60_000, (0u64..14).prop_map(|page| page * 4096)];
    let length = prop_oneof![0usize..5000, Just(4096), Just(8192)];
    prop_oneof![
        (offset.clone(), length.clone(), any::<u8>())
            .prop_map(|(at, length, byte)| Step::Write(at, vec![byte; length])),
        (
            offset.clone(),
            proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..700), 0..8)
        )
            .prop_map(|(at, parts)| Step::Vectored(at, parts)),
        (offset.clone(), length).prop_map(|(at, length)| Step::Read(at, length)),
        (0u64..15, 0u64..4).prop_map(|(at, length)| Step::Discard(at * 4096, length * 4096)),
        Just(Step::Flush),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn both_engines_agree_with_memory(steps in proptest::collection::vec(step(), 1..40)) {
        const SIZE: u64 = 80_000;
        let dir = TempDir::new().unwrap();
        let runtime = runtime();
        for engine in engines() {
            for direct in [false, true] {
                let file = new_file(&dir, SIZE);
                let device = FileDevice::open(file, &options(engine, direct)).unwrap();
                let model = crate::MemoryDevice::new("model", SIZE);
                runtime.block_on(async {
                    for step in &steps {
                        match step {
                            Step::Write(at, data) => {
                                device.write(*at, data.clone().into()).await.unwrap();
                                model.write(*at, data.clone().into()).await.unwrap();
                            }
                            Step::Vectored(at, parts) => {
                                let parts: Vec<Bytes> =
                                    parts.iter().cloned().map(Bytes::from).collect();
                                device.write_vectored(*at, parts.clone()).await.unwrap();
                                model.write_vectored(*at, parts).await.unwrap();
                            }
                            Step::Read(at, length) => {
                                let seen = device.read(*at, *length).await.unwrap();
                                assert_eq!(seen, model.read(*at, *length).await.unwrap());
                            }
                            Step::Discard(at, length) => {
                                // Only what both are bound to show: write zeros first.
                                let zeros = Bytes::from(vec![0; *length as usize]);
                                device.write(*at, zeros.clone()).await.unwrap();
                                model.write(*at, zeros).await.unwrap();
                                device.discard(*at, *length).await.unwrap();
                                model.discard(*at, *length).await.unwrap();
                            }
                            Step::Flush => device.flush().await.unwrap(),
                        }
                    }
                    let all = device.read(0, SIZE as usize).await.unwrap();
                    assert_eq!(all, model.read(0, SIZE as usize).await.unwrap());
                });
            }
        }
    }
}

/// A held device is nobody else's until all who hold it let go.
#[tokio::test]
async fn what_is_held_is_not_opened_for_writing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("spare");
    crate::create_sparse_file(&path, 1 << 20).expect("a file");
    let path = path.to_string_lossy().into_owned();
    let open = || FileDevice::open(path.clone(), &FileOptions::default());
    let first = FileDevice::hold(path.clone()).await.expect("held");
    let second = FileDevice::hold(path.clone()).await.expect("held twice");
    drop(first);
    assert!(matches!(open(), Err(DeviceError::InUse { .. })));
    // One of those who hold it is to use it.
    FileDevice::lend(path.clone()).await;
    let device = open().expect("lent");
    let again = FileDevice::hold(path.clone()).await;
    assert!(matches!(again, Err(DeviceError::InUse { .. })));
    drop(device);
    let third = FileDevice::hold(path.clone()).await.expect("held again");
    drop(third);
    assert!(matches!(open(), Err(DeviceError::InUse { .. })));
    drop(second);
    let device = open().expect("free again");
    assert!(matches!(
        FileDevice::hold(path.clone()).await,
        Err(DeviceError::InUse { .. })
    ));
    drop(device);
}
