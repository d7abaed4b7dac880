//! An iSCSI target with logical units in memory, to try initiators and benchmarks with.
//!
//! ```text
//! memory-target [--listen ADDRESS:PORT] [--iqn NAME] [--size-mib N] [--block-bytes 512|4096]
//!               [--physical-bytes N] [--luns N] [--fill] [--read-only]
//!               [--chap USER:SECRET] [--mutual-chap USER:SECRET]
//! ```
//!
//! Prints a line when it listens; ends in good order on Ctrl-C.

use bytes::Bytes;
use serve_iscsi::{
    Authentication, ChapCredentials, LogicalUnit, LunIdentity, MemoryUnit, Server, Target,
    TargetOptions, TargetSet,
};
use std::collections::BTreeMap;
use std::sync::Arc;

type AnyError = Box<dyn std::error::Error>;

fn credentials(text: &str) -> Result<ChapCredentials, AnyError> {
    let (user, secret) = text.split_once(':').ok_or("give USER:SECRET")?;
    Ok(ChapCredentials {
        user: user.into(),
        secret: secret.into(),
    })
}

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    let mut listen = String::from("127.0.0.1:3260");
    let mut iqn = String::from("iqn.2025-01.org.millpond:memory");
    let (mut size_mib, mut block_bytes, mut lun_count) = (1024, 512, 1);
    let mut physical_bytes = None;
    let mut is_filled = false;
    let mut is_read_only = false;
    let (mut chap, mut mutual) = (None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--listen" => listen = value()?,
            "--iqn" => iqn = value()?,
            "--size-mib" => size_mib = value()?.parse()?,
            "--block-bytes" => block_bytes = value()?.parse()?,
            "--physical-bytes" => physical_bytes = Some(value()?.parse()?),
            "--luns" => lun_count = value()?.parse()?,
            "--fill" => is_filled = true,
            "--read-only" => is_read_only = true,
            "--chap" => chap = Some(credentials(&value()?)?),
            "--mutual-chap" => mutual = Some(credentials(&value()?)?),
            _ => return Err(format!("unknown argument {argument}").into()),
        }
    }
    let mut luns: BTreeMap<u16, Arc<dyn LogicalUnit>> = BTreeMap::new();
    for number in 0..lun_count {
        let mut naa = [0x6d; 16];
        naa[14..].copy_from_slice(&u16::to_be_bytes(number));
        let identity = LunIdentity::new(format!("MEMORY{number:04}"), naa);
        let mut unit = MemoryUnit::new(size_mib << 20, block_bytes, identity);
        if let Some(physical_bytes) = physical_bytes {
            unit = unit.with_physical_block_bytes(physical_bytes);
        }
        if is_filled {
            // Every byte is backed by memory of its own, as a benchmark wants it.
            let mebibyte = Bytes::from(vec![0xa5; 1 << 20]);
            for at in 0..size_mib {
                unit.write(at << 20, mebibyte.clone(), false).await?;
            }
        }
        luns.insert(number, Arc::new(unit));
    }
    let authentication = match chap {
        None => Authentication::None,
        Some(initiator) => Authentication::Chap {
            initiator,
            target: mutual,
        },
    };
    let options = TargetOptions {
        authentication,
        is_read_only,
        ..TargetOptions::default()
    };
    let targets = Arc::new(TargetSet::new());
    targets.add(Target {
        iqn: iqn.clone(),
        luns,
        options,
    })?;
    let server = Server::bind(listen.parse()?, targets).await?;
    println!("listening: iscsi://{}/{iqn}/0", server.local_address());
    tokio::signal::ctrl_c().await?;
    server.shutdown().await;
    Ok(())
}
