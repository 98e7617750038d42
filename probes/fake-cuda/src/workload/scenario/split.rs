//! Wall time in known shares.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use gpucause_fake_cuda::script::Way;
use gpucause_fake_cuda::{block, clock};
use serde_json::{Value, json};

use super::latency::warm_up;
use super::{Stage, join, ns, result};
use crate::caller::{Caller, sum};
use crate::cli::{Common, Split};
use crate::process::{Burners, pin, thread_id};
use crate::session::Threads;
use crate::thread_stats::ThreadStats;

const OP: &str = "cudaLaunchKernel";

/// A share of each round.
#[derive(Debug, Clone)]
struct Share {
    name: String,
    way: Way,
    inside: bool,
    ns: u64,
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
        let (way, inside) = match name {
            "host" => (Way::Spin, false),
            "launch" => (Way::Spin, true),
            _ => {
                let inside = name.strip_prefix("call-");
                let way = Way::named(inside.unwrap_or(name)).with_context(|| {
                    format!("`{name}`: write host, launch, or a way of `block`, with call- or not")
                })?;
                (way, inside.is_some())
            }
        };
        shares.push(Share { name: name.into(), way, inside, ns: round * percent / 100 });
    }
    if left > 0 {
        let name = "host".into();
        shares.push(Share { name, way: Way::Spin, inside: false, ns: round * left / 100 });
    }
    if shares.iter().all(|share| share.ns == 0) {
        bail!("`{text}`: nothing to do");
    }
    Ok(shares)
}

/// Wall and CPU time of one share over all rounds.
#[derive(Debug, Default, Clone, Copy)]
struct Spent {
    wall_ns: u64,
    cpu_ns: u64,
}

impl Spent {
    fn measure(&mut self, act: impl FnOnce() -> Result<()>) -> Result<()> {
        let (wall, cpu) = (clock::monotonic_ns(), clock::thread_cpu_ns());
        act()?;
        self.cpu_ns += clock::thread_cpu_ns() - cpu;
        self.wall_ns += clock::monotonic_ns() - wall;
        Ok(())
    }
}

fn one_round(
    stage: &Stage,
    caller: &mut Caller,
    shares: &[Share],
    spent: &mut BTreeMap<String, Spent>,
) -> Result<()> {
    for share in shares {
        if share.inside {
            stage.libraries.set_thread(OP, &format!("{}={}ns", share.way.name(), share.ns))?;
        }
        spent.entry(share.name.clone()).or_default().measure(|| {
            if share.inside {
                caller.step();
            } else {
                block::block(share.way, share.ns)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

pub(crate) fn run(common: &Common, options: &Split) -> Result<()> {
    let shares = shares(&options.shares, options.round)?;
    let stage = Stage::set(common, OP)?;
    block::set_dir(options.dir.clone());
    stage.libraries.set_in("dir", OP, &options.dir.to_string_lossy())?;
    let cpu = options.cpu;
    let burners = Burners::start(options.burners, cpu.unwrap_or(0), &options.burner_name)?;
    let more = json!({ "burners": burners.pids() });
    let head = join(
        result("split", &stage.libraries),
        json!({ "shares": options.shares, "round_ns": options.round, "burners": burners.pids() }),
    );
    let (length, kernels) = (ns(options.seconds), u64::from(common.kernels));
    let threads = Threads::run(common, options.threads, &more, move |gate| {
        if let Some(cpu) = cpu {
            pin(cpu)?;
        }
        let mut caller = stage.caller();
        for share in &shares {
            if share.inside {
                stage.libraries.set_thread(OP, &format!("{}=0ns", share.way.name()))?;
            } else {
                block::prepare(share.way)?;
            }
        }
        gate.pass();
        stage.libraries.set_thread(OP, "")?;
        warm_up(&mut caller, kernels);
        let mut spent = BTreeMap::new();
        let start = ThreadStats::now()?;
        let end = clock::monotonic_ns() + length;
        while clock::monotonic_ns() < end {
            one_round(&stage, &mut caller, &shares, &mut spent)?;
        }
        let thread = ThreadStats::now()?.since(&start);
        let spent: BTreeMap<String, Value> = spent
            .into_iter()
            .map(|(name, s)| (name, json!({ "wall_ns": s.wall_ns, "cpu_ns": s.cpu_ns })))
            .collect();
        Ok(json!({
            "tid": thread_id(),
            "name": format!("launcher-{}", gate.index),
            "spent": spent,
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
                ("launch", Way::Spin, true, 200),
                ("call-lock", Way::Lock, true, 300),
                ("host", Way::Spin, false, 500),
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
