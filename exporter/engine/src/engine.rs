//! Evaluates successive snapshots and keeps the state between them.

use std::collections::{HashMap, HashSet, VecDeque};

use gpucause_abi::snapshot::ProcessSnapshot;
use gpucause_abi::{Nanos, ProcId, Tid};

use crate::activity::{self, Activities, Timeline, TimelinePoint};
use crate::attribution::Attribution;
use crate::baseline::Baseline;
use crate::chain::{Cause, Chain, CodeShare, HostCpus, Located};
use crate::chain_store::ChainStore;
use crate::charged::Charged;
use crate::computing::computing;
use crate::context::{Context, Process};
use crate::detection::Detection;
use crate::divide::{divide, divide_effects, fit};
use crate::effect::measure;
use crate::findings::Findings;
use crate::history::{Evaluation, History, leak_span};
use crate::input::EngineInput;
use crate::long_calls::LongCalls;
use crate::peers::Peers;
use crate::preparers::Preparers;
use crate::rules::unexplained::{loss, rest};
use crate::rules::{FALLBACK, RULES, Rule};
use crate::settings::Settings;

pub use crate::chain_store::OTHER_PROCESS;
pub use crate::chain_totals::{ChainCount, Stall};

/// Ticks of the long window.
const LONG_WINDOW: usize = 5;

/// Part of the usual time between snapshots from which a shorter one is as good.
const FULL_WINDOW: f64 = 0.75;

/// The shortest time that is evaluated.
const MIN_WINDOW: Nanos = Nanos(20_000_000);

/// Evaluates snapshots and keeps the chains.
#[derive(Debug, Default)]
pub struct Engine {
    settings: Settings,
    baselines: VecDeque<Baseline>,
    histories: HashMap<ProcId, History>,
    store: ChainStore,
    /// Threads that computed in the last window, of processes that their own code limited.
    computing: Vec<(ProcId, Tid)>,
    charged: Charged,
    long_calls: LongCalls,
    preparers: Preparers,
    ticks: u64,
    timeline: Timeline,
    /// Name of the host, if known.
    host: Option<String>,
    peers: Peers,
}

impl Engine {
    /// An engine without snapshots.
    pub fn new(settings: Settings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Sets the name of the host in sentences.
    #[must_use]
    pub fn on_host(self, name: &str) -> Self {
        Self { host: Some(name.to_owned()).filter(|name| !name.is_empty()), ..self }
    }

    /// Sets the address of the exporter, such as `http://localhost:9400`, for the commands of the chains.
    pub fn set_url(&mut self, url: &str) {
        self.store.set_url(url);
    }

    /// Sets what is known of ranks on other hosts, until it is set again.
    pub fn set_peers(&mut self, peers: Peers) {
        self.peers = peers;
    }

    /// Sets where the tasks of ongoing chains run, by id of the chain, and the CPUs of the host, for the commands of the chains.
    pub fn set_places(&mut self, cpus: HostCpus, places: &HashMap<String, Located>) {
        self.store.set_places(cpus, places);
    }

    /// Sets where the victims of ongoing chains spend their time, by id of the chain, most first.
    pub fn set_code(&mut self, code: HashMap<String, Vec<CodeShare>>) {
        self.store.set_code(code);
    }

    /// Ends all chains: there are no more snapshots.
    pub fn end_chains(&mut self) {
        self.computing.clear();
        self.store.end_unseen(None);
    }

    /// Changes the settings; chains stay. The usual launch rate is measured again when other ops count as launches.
    pub fn set_settings(&mut self, settings: Settings) {
        if settings.launch_ops != self.settings.launch_ops {
            self.histories.values_mut().for_each(History::reset_pace);
        }
        self.settings = settings;
    }

    /// Evaluates a snapshot. One that comes less than 20 ms after the previous is ignored: shares of so short a window say nothing.
    pub fn evaluate(&mut self, input: &EngineInput) {
        let now = input.snapshot.taken_at;
        let Some(last) = self.baselines.back() else {
            self.baselines.push_back(Baseline::new(input, None));
            return;
        };
        if now.less(last.at) < MIN_WINDOW {
            return;
        }
        self.ticks += 1;
        let oldest = self.ticks.saturating_sub(LONG_WINDOW as u64);
        self.preparers.update(&input.snapshot.processes, self.ticks, oldest);
        let baselines: &[Baseline] = self.baselines.make_contiguous();
        let preparers = &self.preparers;
        let mut context =
            context_of((&self.settings, preparers), &self.histories, baselines, input);
        context.host = self.host.as_deref();
        context.peers = Some(&self.peers);
        self.long_calls.update(&input.snapshot, baselines, self.ticks);
        let jobs = context.processes.iter().filter(|process| process.dispatches());
        self.store.set_jobs(jobs.count());
        let point = activity::point(&context, input.unix_seconds);
        let mut attribution = Attribution {
            baselines,
            input,
            tick: self.ticks,
            store: &mut self.store,
            charged: &mut self.charged,
            long_calls: &mut self.long_calls,
        };
        for index in 0..context.processes.len() {
            let found = detections(&context, index);
            attribution.charge(&context, found);
        }
        let mut histories = HashMap::with_capacity(context.processes.len());
        for process in context.processes.iter().filter(|process| process.dispatches()) {
            let id = process.now.id;
            let mut history = self.histories.remove(&id).unwrap_or_default();
            let evaluation = Evaluation {
                delta: &process.short,
                live: process.now.memory.live(),
                healthy: !self.store.was_seen(id, now),
                computes: process.computing.is_some(),
                settings: &self.settings,
            };
            history.record(now, &evaluation);
            histories.insert(id, history);
        }
        let computing = |process: &Process<'_>| Some((process.now.id, process.computing?.tid));
        let is_named = self.settings.rule(Cause::HostCode).enabled;
        let processes = context.processes.iter().filter(|_| is_named);
        self.computing = processes.filter_map(computing).collect();
        let known: HashSet<_> = input.snapshot.processes.iter().map(|process| process.id).collect();
        self.store.end_unseen(Some(self.ticks));
        if let Some(point) = point {
            let (chains, worst) = self.store.ongoing();
            self.timeline.push(TimelinePoint { chains, worst, ..point });
        }
        self.store.tidy(self.ticks, &self.settings, |id| known.contains(&id));
        let long_calls = &self.long_calls;
        self.charged.tidy(|id| {
            let first = long_calls.first_tick(id).unwrap_or(oldest);
            known.contains(&id).then_some(first.min(oldest))
        });
        self.histories = histories;
        // With many processes each of these is large.
        drop(context);
        if self.baselines.len() == LONG_WINDOW {
            self.baselines.pop_front();
        }
        let baseline = Baseline::new(input, self.baselines.back());
        self.baselines.push_back(baseline);
    }

    /// Threads that computed between launches in the last window, one of each process that its own code limited: a chain of that is
    /// near, or there is one.
    pub fn computing(&self) -> &[(ProcId, Tid)] {
        &self.computing
    }

    /// Chains, the [worst first](Chain::worst_first).
    pub fn chains(&self) -> Vec<&Chain> {
        self.store.chains()
    }

    /// Returns the activity of each process over the last evaluations; `None` before the second.
    pub fn activities(&self) -> Option<Activities> {
        activity::activities(&self.baselines)
    }

    /// Returns the activity of all processes in each evaluation of the last [`TIMELINE_SECONDS`](activity::TIMELINE_SECONDS), oldest first.
    pub fn timeline(&self) -> impl ExactSizeIterator<Item = &TimelinePoint> {
        self.timeline.points()
    }

    /// Adds the counts and times of these processes, now and later, to [`OTHER_PROCESS`]: nothing is lost when they are no longer
    /// tracked individually.
    pub fn aggregate(&mut self, processes: &HashSet<ProcId>) {
        self.store.aggregate(processes);
    }

    /// The chains, and counts and times of processes that are observed and of [`OTHER_PROCESS`].
    pub fn findings(&self) -> Findings {
        Findings {
            chains: self.chains().into_iter().cloned().collect(),
            counts: self.counts().cloned().collect(),
            stalls: self.stalls().cloned().collect(),
        }
    }

    /// Chains by victim, cause, effect and severity, of processes that are observed, and of [`OTHER_PROCESS`].
    pub fn counts(&self) -> impl ExactSizeIterator<Item = &ChainCount> {
        self.store.counts()
    }

    /// Time attributed and lost by victim and cause, of processes that are observed, and of [`OTHER_PROCESS`].
    pub fn stalls(&self) -> impl ExactSizeIterator<Item = &Stall> {
        self.store.stalls()
    }
}

fn context_of<'a>(
    (settings, preparers): (&'a Settings, &'a Preparers),
    histories: &HashMap<ProcId, History>,
    baselines: &'a [Baseline],
    input: &'a EngineInput,
) -> Context<'a> {
    let now = &input.snapshot;
    let last = baselines.last().map_or(Nanos(0), |last| last.at);
    let fresh = |process: &&ProcessSnapshot| process.ended.is_none_or(|ended| ended > last);
    let mut processes = Vec::with_capacity(now.processes.len());
    processes.extend(now.processes.iter().filter(fresh).map(|snapshot| {
        let history = histories.get(&snapshot.id);
        let delta = |earlier: Option<&'a Baseline>| {
            earlier.map(|earlier| earlier.delta(now, snapshot)).unwrap_or_default()
        };
        let knows = |earlier: &&Baseline| earlier.processes.contains_key(&snapshot.id);
        let mut process = Process {
            now: snapshot,
            short: delta(baselines.last()),
            long: delta(baselines.iter().find(knows).or(baselines.last())),
            warmed_up: history.is_some_and(History::warmed_up),
            ticks_since_loading: history.map_or(0, History::ticks_since_loading),
            throttled: baselines
                .last()
                .map_or(Nanos(0), |last| last.throttled(&input.throttled_cgroups, snapshot.id)),
            live_memory: history
                .map(|history| history.live_over(now.taken_at, leak_span(settings)))
                .unwrap_or_default(),
            effects: Vec::new(),
            computing: None,
            computed_before: history.map_or(0, History::computed),
        };
        if let Some(history) = history.filter(|_| process.dispatches()) {
            if process.warmed_up {
                process.effects = measure(&process, history, settings);
            }
            process.computing =
                computing(&process.short, &process.long, process.computed_before, settings);
        }
        process
    }));
    let mut workers: HashMap<ProcId, Vec<usize>> = HashMap::new();
    // A child that makes calls is a program of its own.
    for (index, process) in processes.iter().enumerate().filter(|(_, own)| !own.dispatches()) {
        if let Some(parent) = process.now.parent {
            workers.entry(parent).or_default().push(index);
        }
    }
    let came_early = came_early(baselines, now.taken_at);
    let throttled = &input.throttled_gpus;
    let window = now.taken_at.less(last);
    Context {
        settings,
        processes,
        workers,
        preparers,
        throttled,
        host: None,
        came_early,
        window,
        peers: None,
    }
}

/// Returns true if a snapshot comes early after the last baseline, by the median time between baselines.
fn came_early(baselines: &[Baseline], now: Nanos) -> bool {
    let windows = baselines.windows(2).map(|pair| pair[1].at.less(pair[0].at));
    let mut windows: Vec<_> = windows.collect();
    windows.sort_unstable();
    let usual = windows.get(windows.len() / 2);
    usual.zip(baselines.last()).is_some_and(|(usual, last)| {
        now.less(last.at).as_secs_f64() < FULL_WINDOW * usual.as_secs_f64()
    })
}

/// Detections on one process, in the [order](crate::divide::ORDER) in which they are charged with its time.
fn detections(context: &Context<'_>, index: usize) -> Vec<Detection> {
    let Some(process) = context.processes.get(index).filter(|process| process.dispatches()) else {
        return Vec::new();
    };
    let evaluate = |rule: &Rule| {
        let detection = (rule.evaluate)(context, index)?;
        context.settings.rule(detection.cause).enabled.then_some(detection)
    };
    let mut found = Vec::with_capacity(RULES.len() / 2);
    let due = RULES.iter().filter(|rule| rule.applies(context, process));
    found.extend(due.filter_map(evaluate));
    divide(process.short.threads(), context.settings, &mut found);
    if FALLBACK.applies(context, process) {
        found.extend(rest(context, index, &found));
    }
    divide_effects(process, &mut found);
    if FALLBACK.applies(context, process) {
        found.extend(loss(context, index, &found));
    }
    fit(&mut found, process.short.wall);
    found
}
