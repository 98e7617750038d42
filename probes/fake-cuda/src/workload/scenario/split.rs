//! Wall time in known shares.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use gpucause_fake_cuda::script::Way;
use gpucause_fake_cuda::{block, clock};
use serde_json::{Value, json};

use super::{Setup, join, ns, result};
use crate::caller::{Caller, sum};
use crate::cli::{Common, Split};
use crate::process::{Burners, pin, run_ns, thread_id};
use crate::session::Threads;
use crate::thread_stats::{RunQueue, ThreadStats};

/// Ops that are called: the launch, and the one that waits for it.
const OPS: [&str; 2] = ["cudaLaunchKernel", "cudaStreamSynchronize"];
const LAUNCH: usize = 0;
const SYNC: usize = 1;

/// A share of each round.
#[derive(Debug, Clone)]
struct Share {
    name: String,
    way: Way,
    /// The op inside which it is spent, as index of [`OPS`].
    inside: Option<usize>,
    ns: u64,
}

fn what(name: &str) -> Result<(Way, Option<usize>)> {
    let prefixes = [("call-", LAUNCH), ("sync-", SYNC)];
    let inside =
        prefixes.iter().find_map(|(prefix, op)| Some((name.strip_prefix(prefix)?, Some(*op))));
    let (way, inside) = match name {
        "host" => return Ok((Way::Spin, None)),
        "launch" => return Ok((Way::Spin, Some(LAUNCH))),
        _ => inside.unwrap_or((name, None)),
    };
    let way = Way::named(way).with_context(|| {
        format!("`{name}`: write host, launch, or a way of `block`, with call- or sync- or neither")
    })?;
    Ok((way, inside))
}

fn shares(text: &str, round: u64) -> Result<Vec<Share>> {
    let mut shares = Vec::new();
    let mut left: u64 = 100;
    for item in text.split(',') {
        let (name, percent) =
            item.split_once('=').with_context(|| format!("`{item}`: write WHAT=PERCENT"))?;
        let percent: u64 = percent.parse().with_context(|| format!("`{item}`: a whole percent"))?;
        left = left
            .checked_sub(percent)
            .with_context(|| format!("`{text}`: the shares add up to more than 100"))?;
        let (way, inside) = what(name)?;
        shares.push(Share { name: name.into(), way, inside, ns: round * percent / 100 });
    }
    if left > 0 {
        let name = "host".into();
        shares.push(Share { name, way: Way::Spin, inside: None, ns: round * left / 100 });
    }
    if shares.iter().all(|share| share.ns == 0) {
        bail!("`{text}`: nothing to do");
    }
    Ok(shares)
}

/// Wall time of one share over all rounds, and what of it the thread had a CPU, or waited for one.
#[derive(Debug, Default, Clone, Copy)]
struct Spent {
    wall_ns: u64,
    cpu_ns: u64,
    queued_ns: u64,
}

impl Spent {
    fn measure(&mut self, queue: &RunQueue, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let start = queue.now()?;
        act()?;
        let end = queue.now()?;
        self.queued_ns += end.queued_ns - start.queued_ns;
        self.cpu_ns += end.on_cpu_since(&start);
        self.wall_ns += end.wall_ns - start.wall_ns;
        Ok(())
    }
}

fn one_round(
    setup: &Setup,
    (caller, queue): (&mut Caller, &RunQueue),
    shares: &[Share],
    spent: &mut BTreeMap<String, Spent>,
) -> Result<()> {
    for share in shares {
        if let Some(op) = share.inside {
            let script = format!("{}={}ns", share.way.name(), share.ns);
            setup.libraries.set_thread(OPS[op], &script)?;
        }
        spent.entry(share.name.clone()).or_default().measure(queue, || {
            match share.inside {
                Some(op) => {
                    caller.step_of(op);
                }
                None => block::block(share.way, share.ns)?,
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn prepare(setup: &Setup, shares: &[Share]) -> Result<()> {
    for share in shares {
        match share.inside {
            Some(op) => {
                setup.libraries.set_thread(OPS[op], &format!("{}=0ns", share.way.name()))?;
            }
            None => block::prepare(share.way)?,
        }
    }
    Ok(())
}

pub(crate) fn run(common: &Common, options: &Split) -> Result<()> {
    let shares = shares(&options.shares, options.round)?;
    let setup = Setup::new(common, &OPS.join(","))?;
    block::set_dir(options.dir.clone());
    setup.libraries.set_in("dir", OPS[LAUNCH], &options.dir.to_string_lossy())?;
    let (cpu, name) = (options.cpu, &options.burner_name);
    let burners = Burners::start(options.burners, cpu.unwrap_or(0), name, options.burner_nice)?;
    let rivals = burners.pids();
    let head = join(result("split", &setup.libraries), json!({ "shares": options.shares }));
    let (length, kernels) = (ns(options.seconds), u64::from(common.kernels));
    let threads = Threads::run(common, options.threads, move |barrier| {
        if let Some(cpu) = cpu {
            pin(cpu)?;
        }
        let mut caller = setup.caller();
        prepare(&setup, &shares)?;
        let queue = RunQueue::of_this_thread()?;
        barrier.wait();
        OPS.iter().try_for_each(|op| setup.libraries.set_thread(op, ""))?;
        let first_call = clock::monotonic_ns();
        (0..kernels).for_each(|_| {
            caller.step_of(LAUNCH);
        });
        let mut spent = BTreeMap::new();
        let (start, burnt) = (ThreadStats::now()?, run_ns(&rivals)?);
        let end = clock::monotonic_ns() + length;
        while clock::monotonic_ns() < end {
            one_round(&setup, (&mut caller, &queue), &shares, &mut spent)?;
        }
        let thread = ThreadStats::now()?.since(&start);
        let burnt = run_ns(&rivals)? - burnt;
        let spent: BTreeMap<String, Value> = spent
            .into_iter()
            .map(|(name, s)| {
                let times = (s.wall_ns, s.cpu_ns, s.queued_ns);
                (name, json!({ "wall_ns": times.0, "cpu_ns": times.1, "queued_ns": times.2 }))
            })
            .collect();
        Ok(json!({
            "tid": thread_id(),
            "name": format!("launcher-{}", barrier.index),
            "first_call_ns": first_call,
            "spent": spent,
            "burners_run_ns": burnt,
            "thread": thread,
            "calls": caller.truth()["calls"],
        }))
    })?;
    let of_threads = threads.results()?;
    let calls: Vec<Value> = of_threads.iter().map(|thread| thread["calls"].clone()).collect();
    drop(burners);
    let report = join(head, json!({ "calls": sum(&calls), "threads": of_threads }));
    threads.finish(common, &report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_host() {
        let shares = shares("launch=20,call-lock=30", 1000).expect("the shares are right");
        let seen: Vec<_> =
            shares.iter().map(|s| (s.name.as_str(), s.way, s.inside, s.ns)).collect();
        assert_eq!(
            seen,
            [
                ("launch", Way::Spin, Some(LAUNCH), 200),
                ("call-lock", Way::Lock, Some(LAUNCH), 300),
                ("host", Way::Spin, None, 500),
            ]
        );
    }

    #[test]
    fn messages_name_the_wrong_share() {
        for (text, token) in
            [("launch", "`launch`"), ("lunch=5", "`lunch`"), ("launch=60,io=50", "more than 100")]
        {
            let message = format!("{:#}", shares(text, 1000).expect_err("is wrong"));
            assert!(message.contains(token), "{text}: {message}");
        }
    }
}
