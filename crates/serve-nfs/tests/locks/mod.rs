//! Locks of NLM: kept between clients and over restarts.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn locks_are_kept_between_clients() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    let range = |words: Words, process: u32, offset: u64, length: u64| {
        let words = words.opaque(b"machine").opaque(&file).opaque(b"owner");
        words.u32(process).u64(offset).u64(length)
    };
    let lock = |process, waits: u32, exclusive: u32, offset, length| {
        let words = Words::new().opaque(b"c").u32(waits).u32(exclusive);
        range(words, process, offset, length).u32(0).u32(0)
    };
    let unlock =
        |process, offset, length| range(Words::new().opaque(b"c"), process, offset, length);
    let status = |mut reply: Words| {
        assert_eq!(reply.take_opaque(), b"c");
        reply.take32()
    };
    assert_eq!(
        status(client.call(NLM, 4, 2, &ROOT, lock(1, 0, 1, 0, 10)).await),
        0
    );
    assert_eq!(
        status(client.call(NLM, 4, 2, &ROOT, lock(2, 0, 0, 9, 1)).await),
        1
    );
    assert_eq!(
        status(client.call(NLM, 4, 2, &ROOT, lock(2, 0, 0, 10, 0)).await),
        0
    );
    let test = range(Words::new().opaque(b"c").u32(1), 3, 5, 1);
    let mut reply = client.call(NLM, 4, 1, &ROOT, test).await;
    assert_eq!((reply.take_opaque(), reply.take32()), (b"c".to_vec(), 1));
    assert_eq!(
        (reply.take32(), reply.take32(), reply.take_opaque()),
        (1, 1, b"owner".to_vec())
    );
    assert_eq!((reply.take64(), reply.take64()), (0, 10));
    // Who waits gets it when it comes free.
    let mut waiting = rig.client().await;
    let wanted = lock(2, 1, 1, 0, 5);
    let waits = tokio::spawn(async move { waiting.call(NLM, 4, 2, &ROOT, wanted).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waits.is_finished());
    assert_eq!(
        status(client.call(NLM, 4, 4, &ROOT, unlock(1, 0, 0)).await),
        0
    );
    assert_eq!(status(waits.await.expect("an answer")), 0);
    assert_eq!(
        status(client.call(NLM, 4, 2, &ROOT, lock(1, 0, 1, 0, 1)).await),
        1
    );
    // A client that begins anew has none.
    let notify = Words::new().opaque(b"machine").u32(7);
    let _ = client.call(100_024, 1, 6, &ROOT, notify).await;
    assert_eq!(
        status(client.call(NLM, 4, 2, &ROOT, lock(1, 0, 1, 0, 0)).await),
        0
    );
    // Of a file that is gone.
    assert_eq!(client.remove(&ROOT, &root, b"file", 12).await, 0);
    assert_eq!(
        status(client.call(NLM, 4, 2, &ROOT, lock(1, 0, 1, 0, 0)).await),
        7
    );
}

/// What waits keeps nothing waiting that came after it by the same connection, be it in the same
/// packet; its answer comes when it can be given.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_answered_later() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    let range = |words: Words, process: u32| {
        let words = words.opaque(b"machine").opaque(&file).opaque(b"owner");
        words.u32(process).u64(0).u64(10)
    };
    let lock = |process, waits: u32| {
        let words = Words::new().opaque(b"c").u32(waits).u32(1);
        range(words, process).u32(0).u32(0)
    };
    let status = |mut reply: Words| {
        assert_eq!([(); 4].map(|()| reply.take32()), [0; 4]);
        assert_eq!(reply.take_opaque(), b"c");
        reply.take32()
    };
    let _ = client.call(NLM, 4, 2, &ROOT, lock(1, 0)).await;
    let mut other = rig.client().await;
    let data = pattern(100_000, 3);
    let write = Words::new().opaque(&file).u64(0).u32(100_000).u32(2);
    let read = Words::new().opaque(&file).u64(0).u32(100_000);
    let all = [
        client::record(1, NLM, 4, 2, &ROOT, &lock(2, 1)),
        client::record(2, client::NFS, 3, 0, &ROOT, &Words::new()),
        client::record(3, client::NFS, 3, 7, &ROOT, &write.opaque(&data)),
    ];
    other.stream.write_all(&all.concat()).await.expect("sent");
    let mut answered = [other.reply().await.0, other.reply().await.0];
    answered.sort_unstable();
    assert_eq!(answered, [2, 3]);
    let (found, _) = client.read(&ROOT, &file, 0, 100_000).await.expect("read");
    assert!(found == data);
    let record = client::record(4, client::NFS, 3, 6, &ROOT, &read);
    other.stream.write_all(&record).await.expect("sent");
    assert_eq!(other.reply().await.0, 4);
    let unlock = range(Words::new().opaque(b"c"), 1);
    let _ = client.call(NLM, 4, 4, &ROOT, unlock).await;
    let (xid, reply) = other.reply().await;
    assert_eq!((xid, status(reply)), (1, 0));
}

/// A lock that nobody waits for any more is not granted when it comes free: it would be held for
/// good.
#[tokio::test(flavor = "multi_thread")]
async fn locks_that_were_given_up_are_not_granted() {
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    let range = |words: Words, process: u32| {
        let words = words.opaque(b"machine").opaque(&file).opaque(b"owner");
        words.u32(process).u64(0).u64(10)
    };
    let lock = |process, waits: u32| {
        let words = Words::new().opaque(b"c").u32(waits).u32(1);
        range(words, process).u32(0).u32(0)
    };
    let cancel = |process| range(Words::new().opaque(b"c").u32(1).u32(1), process);
    let unlock = |process| range(Words::new().opaque(b"c"), process);
    let status = |mut reply: Words| {
        assert_eq!(reply.take_opaque(), b"c");
        reply.take32()
    };
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Ends {
        ByCancel,
        ByUnlock,
        WithConnection,
    }
    for ends in [Ends::ByCancel, Ends::ByUnlock, Ends::WithConnection] {
        assert_eq!(status(client.call(NLM, 4, 2, &ROOT, lock(1, 0)).await), 0);
        let mut waiting = rig.client().await;
        let record = client::record(9, NLM, 4, 2, &ROOT, &lock(2, 1));
        waiting.stream.write_all(&record).await.expect("sent");
        tokio::time::sleep(Duration::from_millis(200)).await;
        let begun = std::time::Instant::now();
        match ends {
            Ends::ByCancel => {
                let cancelled = client.call(NLM, 4, 3, &ROOT, cancel(2)).await;
                assert_eq!(status(cancelled), 0);
            }
            Ends::ByUnlock => {
                let given_back = client.call(NLM, 4, 4, &ROOT, unlock(2)).await;
                assert_eq!(status(given_back), 0);
            }
            Ends::WithConnection => {
                drop(waiting);
                waiting = rig.client().await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        if ends != Ends::WithConnection {
            // It is told that it is blocked, long before it would be.
            let (xid, mut reply) = waiting.reply().await;
            let head = [(); 4].map(|()| reply.take32());
            assert_eq!((xid, head, status(reply)), (9, [0; 4], 3));
            assert!(begun.elapsed() < Duration::from_secs(3));
        }
        assert_eq!(status(client.call(NLM, 4, 4, &ROOT, unlock(1)).await), 0);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let free = status(client.call(NLM, 4, 2, &ROOT, lock(3, 0)).await);
        assert_eq!(free, 0, "{ends:?}");
        assert_eq!(status(client.call(NLM, 4, 4, &ROOT, unlock(3)).await), 0);
    }
}

/// Goal: a client of version 3 that began anew is heard by UDP, where its portmapper says, and by
/// UDP nothing else is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_began_anew_is_heard_by_udp() {
    const STATUS: u32 = 100_024;
    let rig = Rig::new(OPEN).await;
    let (mut client, root) = rig.mounted().await;
    let file = client.create(&ROOT, &root, b"file", 1).await.expect("made");
    let lock_in = |state: u32, process: u32| {
        let words = Words::new().opaque(b"c").u32(0).u32(1).opaque(b"machine");
        let words = words.opaque(&file).opaque(b"owner").u32(process);
        words.u64(0).u64(10).u32(0).u32(state)
    };
    let lock = |process: u32| lock_in(0, process);
    let status = |mut reply: Words| {
        assert_eq!(reply.take_opaque(), b"c");
        reply.take32()
    };
    assert_eq!(status(client.call(NLM, 4, 2, &ROOT, lock(1)).await), 0);
    assert_eq!(status(client.call(NLM, 4, 2, &ROOT, lock(2)).await), 1);

    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await;
    let socket = socket.expect("a socket");
    // The words behind the head of a reply, which begins with `xid, 1, 0, 0, 0`.
    let asked = async |at: u16, xid: u32, (program, version, procedure), words: &Words| {
        let record = client::record(xid, program, version, procedure, &ROOT, words);
        let sent = socket.send_to(&record[4..], ("127.0.0.1", at)).await;
        sent.expect("sent");
        let mut reply = vec![0; 4096];
        let length = socket.recv(&mut reply).await.expect("an answer");
        let words = reply[..length].chunks_exact(4);
        let words = words.map(|word| u32::from_be_bytes(word.try_into().expect("four bytes")));
        let words: Vec<u32> = words.collect();
        assert_eq!(words[..2], [xid, 1]);
        words[2..].to_vec()
    };
    let port = rig.server.local_address().port();
    let which = |program| Words::new().u32(program).u32(1).u32(17).u32(0);
    let found = asked(port, 1, (100_000, 2, 3), &which(STATUS)).await;
    assert_eq!(found, [0, 0, 0, 0, port.into()]);
    let found = asked(port, 2, (100_000, 2, 3), &which(NLM)).await;
    assert_eq!(found, [0, 0, 0, 0, 0]);
    // Nothing is locked, and what would be long is not told: there is no such program.
    let locked = asked(port, 3, (NLM, 4, 2), &lock(1)).await;
    assert_eq!(locked, [0, 0, 0, 1]);
    let listed = asked(port, 4, (100_000, 2, 4), &Words::new()).await;
    assert_eq!(listed, [0, 0, 0, 1]);
    let began_anew = |name: &[u8], state: u32| Words::new().opaque(name).u32(state);
    let told = (STATUS, 1, 6);
    // Whose it would be is not said.
    let nobody = asked(port, 5, told, &began_anew(b"", 7)).await;
    assert_eq!(nobody, [0; 4]);
    assert_eq!(status(client.call(NLM, 4, 2, &ROOT, lock(2)).await), 1);
    let first = asked(port, 6, told, &began_anew(b"machine", 7)).await;
    assert_eq!(first, [0; 4]);
    let locked = client.call(NLM, 4, 2, &ROOT, lock_in(7, 2)).await;
    assert_eq!(status(locked), 0);
    // The same once more, as the answer was lost: what was locked since stays.
    let again = asked(port, 7, told, &began_anew(b"machine", 7)).await;
    assert_eq!(again, [0; 4]);
    let held = client.call(NLM, 4, 2, &ROOT, lock_in(7, 3)).await;
    assert_eq!(status(held), 1);
    let next = asked(port, 8, told, &began_anew(b"machine", 9)).await;
    assert_eq!(next, [0; 4]);
    let free = client.call(NLM, 4, 2, &ROOT, lock_in(9, 3)).await;
    assert_eq!(status(free), 0);
}
