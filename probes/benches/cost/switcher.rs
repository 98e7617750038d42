//! The child process that makes context switches: two threads of one CPU that hand a byte to and fro.

use std::io::{Read as _, Write as _};
use std::time::Instant;

use anyhow::Result;

use crate::Series;
use crate::caller::{BATCHES, only_on};

/// Makes the switches on request, and prints nanoseconds per switch in the median batch.
pub(crate) fn run(count: u64) -> Result<()> {
    only_on(0)?;
    let (mut from_peer, mut to_main) = std::io::pipe()?;
    let (mut from_main, mut to_peer) = std::io::pipe()?;
    println!("ready");
    std::io::stdin().read_exact(&mut [0])?;
    let peer = std::thread::spawn(move || -> std::io::Result<()> {
        let mut byte = [0];
        while from_main.read(&mut byte)? == 1 {
            to_main.write_all(&byte)?;
        }
        Ok(())
    });
    let mut byte = [0];
    let batch = count / BATCHES;
    let mut batches = Series::new("batches");
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..batch / 2 {
            to_peer.write_all(&byte)?;
            from_peer.read_exact(&mut byte)?;
        }
        batches.runs.push(start.elapsed().as_nanos() as f64 / batch as f64);
    }
    drop(to_peer);
    peer.join().map_err(|_| anyhow::anyhow!("the peer panicked"))??;
    println!("{}", batches.median());
    Ok(())
}
