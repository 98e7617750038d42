//! Programs whose own code computes between launches.

use std::collections::HashMap;

use gpucause_abi::op::CopyKind;
use gpucause_abi::state::{Phase, Reason, Relation, State};
use gpucause_engine::chain::{Cause, Chain, CodeShare, Effect, Severity};
use gpucause_engine::settings::Settings;

use crate::host::{Host, WINDOW, takes};
use crate::process::{KERNEL, MS, Process, Task, US};
use crate::scenarios::{self, WORKER, slow_data_set, steady, trained};

/// Windows in which it must hold before it is named.
const UNTIL_NAMED: u32 = 3;
const GPU: State = State::Off(Reason::GpuDriver);

/// Launches back to back, as a framework makes them.
fn bound_by_launches(train: &mut Process) {
    train.on(100).launches(40_000, 8 * US).pauses(40_000, 42 * US);
}

fn host_time_of_slow_data_set() -> u64 {
    WINDOW - 6_600 * 5 * US - 66 * 420 * US
}

#[test]
fn a_data_set_that_computes_between_bursts_of_launches_is_found_with_its_time() {
    let host = scenarios::computing();
    let chain = host.only(Cause::HostCode);
    assert_eq!((chain.effect, chain.culprit.as_ref()), (Effect::LaunchGap, None));
    assert_eq!((chain.severity, chain.victim.tid), (Severity::Medium, 100));
    takes(chain, u64::from(scenarios::FAULT_WINDOWS) * host_time_of_slow_data_set());
    let share = |name| (chain.evidence.get(name).unwrap() * 100.0).round();
    assert_eq!((share("computed_share"), share("waited_for_gpu_share")), (97.0, 1.0));
    assert!((60.0..=70.0).contains(&share("long_pauses_share")), "{:?}", chain.evidence);
    assert!(
        chain.sentence.starts_with(
            "train computed for 97 % of the last 2.0 s between launches and hardly waited for the GPU (1.4 %). Measured"
        ),
        "{}",
        chain.sentence
    );
    assert!(chain.fix.contains("num_workers"), "{}", chain.fix);
}

#[test]
fn a_loop_that_only_launches_is_limited_by_itself_and_that_is_low() {
    let mut host = Host::training();
    host.run(60, bound_by_launches);
    let chain = host.only(Cause::HostCode);
    assert_eq!(chain.severity, Severity::Low);
    assert!(chain.fix.contains("CUDA graphs"), "{}", chain.fix);
}

#[test]
fn computing_is_named_in_the_third_window_and_charged_with_all_three() {
    let mut host = trained();
    host.run(UNTIL_NAMED - 1, slow_data_set);
    host.is_silent();
    host.run(1, slow_data_set);
    takes(host.only(Cause::HostCode), u64::from(UNTIL_NAMED) * host_time_of_slow_data_set());
}

#[test]
fn a_thread_that_computes_is_known_from_the_first_window_unless_the_rule_is_disabled() {
    let computing =
        |host: &Host| host.engine.computing().iter().map(|own| own.1.0).collect::<Vec<_>>();
    let mut host = trained();
    assert_eq!(computing(&host), [0; 0], "it waits for the GPU");
    host.run(1, slow_data_set);
    assert_eq!(computing(&host), [100]);
    let mut settings = Settings::default();
    settings.rules.entry(Cause::HostCode).or_default().enabled = false;
    host.engine.set_settings(settings);
    host.run(1, slow_data_set);
    assert_eq!(computing(&host), [0; 0]);
}

#[test]
fn a_loop_whose_gpu_is_behind_is_limited_by_the_gpu() {
    // In a synchronisation, in the copy of a result, and in launches for which the queue is full.
    let waits: [fn(&mut Process); 4] = [
        |train| {
            train.calls("cudaStreamSynchronize", 20, 10 * US, &[(Reason::GpuDriver, 6 * MS)]);
        },
        |train| train.copies("cudaMemcpyAsync", 0, CopyKind::D2h, 20, 6 * MS),
        |train| {
            train.launches(40, 4 * MS);
        },
        // All launches wait: so long is the median.
        |train| {
            train.launches(20_000, 36 * US);
        },
    ];
    for wait in waits {
        let mut host = Host::training();
        host.run(30, |train| {
            train.on(100).launches(2_000, 5 * US).pauses(2_000, 900 * US);
            wait(train);
        });
        host.does_not_blame(&[Cause::HostCode]);
    }
}

#[test]
fn results_that_another_thread_waits_for_are_waited_for() {
    let mut host = Host::training();
    host.run(30, |train| {
        bound_by_launches(train);
        train.on(101).rests(Phase::Host, State::Off(Reason::Futex));
        train.calls("cudaEventSynchronize", 50, 20 * US, &[(Reason::GpuDriver, 20 * MS)]);
    });
    host.is_silent();
}

#[test]
fn a_loop_that_asks_the_gpu_whether_it_is_done_waits_for_it() {
    let mut host = Host::training();
    host.run(30, |train| {
        train.on(100).launches(2_000, 5 * US).pauses(2_000, 900 * US);
        train.calls("cudaEventQuery", 90_000, 2 * US, &[]);
    });
    host.is_silent();
}

#[test]
fn a_thread_that_waits_for_work_does_not_compute() {
    for reason in [Reason::Poll, Reason::Futex, Reason::Sleep, Reason::Net] {
        let mut host = Host::training();
        // Four fifths of the time it computes, as a server under load.
        host.run(30, |server| {
            server.on(100).launches(4_000, 5 * US).pauses(4_000, 400 * US);
            server.off(Phase::Host, reason, 400 * MS);
        });
        host.is_silent();
    }
}

#[test]
fn slow_workers_alone_are_named_where_a_thread_computes_between_batches() {
    let mut host = Host::training();
    host.start_worker(0, 200);
    host.run_all(20, |processes, _| {
        processes[0].on(100).launches(4_000, 5 * US).pauses(4_000, 250 * US);
        processes[0].waits(Reason::Poll, WORKER, 800 * MS, 0);
        processes[1].works(&[(State::Running, 2_000 * MS)]);
    });
    host.only(Cause::DataloaderStarvation);
}

/// A window that was observed for a tenth.
fn tenth_observed(train: &mut Process, launches: u64) {
    train.on(100).launches(launches, 8 * US).pauses(launches, 42 * US);
    train.now.launches.unobserved.0 += WINDOW - WINDOW / 10;
}

fn unobserved(train: &mut Process) {
    train.on(100);
    train.now.launches.unobserved.0 += WINDOW;
}

#[test]
fn a_loop_that_is_not_observed_now_and_then_is_limited_by_itself_throughout() {
    let mut host = Host::training();
    host.run_all(30, |processes, window| match window % 3 {
        0 => tenth_observed(&mut processes[0], 4_000),
        _ => unobserved(&mut processes[0]),
    });
    assert_eq!(host.only(Cause::HostCode).severity, Severity::Low);
    assert_eq!(host.only(Cause::HostCode).ongoing, Some(true));
}

#[test]
fn observed_time_without_launches_ends_what_was_not_observed() {
    let mut host = Host::training();
    host.run_all(300, |processes, window| match window % 15 {
        0 => tenth_observed(&mut processes[0], 4_000),
        1 => unobserved(&mut processes[0]),
        // An evaluation; a tenth of its first window is observed.
        2 => tenth_observed(&mut processes[0], 0),
        3..=6 => unobserved(&mut processes[0]),
        _ => steady(&mut processes[0]),
    });
    host.is_silent();
}

#[test]
fn an_evaluation_on_the_cpu_between_phases_of_training_is_healthy() {
    let mut host = Host::training();
    host.run_all(300, |processes, window| {
        let train = &mut processes[0];
        match window % 15 {
            // The first window of the evaluation has the end of a phase.
            12 => {
                train.on(100).launches(100, 5 * US).pauses(100, 10 * US).pauses(1, 1_900 * MS);
                train.calls("cudaStreamSynchronize", 1, 10 * US, &[(Reason::GpuDriver, 20 * MS)]);
            }
            13 | 14 => {
                train.on(100);
            }
            _ => steady(train),
        }
    });
    host.is_silent();
}

#[test]
fn kernels_that_are_loaded_and_code_that_is_compiled_are_no_computing() {
    let mut host = Host::training();
    host.run(6, |train| {
        train.on(100).launches(200, 5 * US).cold_launches(40, 2 * MS).pauses(200, 9 * MS);
    });
    host.is_silent();
    host.run(20, steady);
    host.is_silent();
}

#[test]
fn launches_that_were_not_timed_are_not_computed() {
    let mut host = Host::training();
    let sampled = |train: &mut Process, each: u64, wait: u64| {
        // One in 64 is timed; the time of the others counts as the host's.
        train.on(100).launches(500, each).pauses(500, 30 * US);
        train.now.launches.untimed += 31_500;
        train.calls("cudaStreamSynchronize", 1, wait, &[]);
    };
    host.run(20, |train| sampled(train, 8 * US, 10 * MS));
    let chain = host.only(Cause::HostCode);
    assert_eq!(chain.severity, Severity::Low);
    let own = (WINDOW - 10 * MS - 32_000 * 8 * US) as f64 / WINDOW as f64;
    assert!((chain.evidence.get("computed_share").unwrap() - own).abs() < 0.01, "{own} {chain:?}");
    assert!((chain.evidence.get("taken_share").unwrap() - own).abs() < 0.01, "{own} {chain:?}");
    let mut full = Host::training();
    full.run(20, |train| sampled(train, 25 * US, 0));
    full.is_silent();
}

/// Two threads that take turns; of 200 launches one is timed, and of its pauses that many are those of a whole turn.
fn sampled_turns(train: &mut Process, long: u64) {
    train.on(100).launches(100, 5 * US).pauses(100 - long, 30 * US).pauses(long, 3 * MS);
    train.now.launches.untimed += 19_900;
    let autograd = Task("pt_autograd_0", 100, Relation::Thread);
    train.waits(Reason::Futex, autograd, 1_100 * MS, 1_090 * MS);
    train.on(101).launches(100, 5 * US).pauses(100, 30 * US);
    train.waits(Reason::Futex, Task("train", 100, Relation::Thread), 900 * MS, 890 * MS);
}

#[test]
fn a_few_long_pauses_of_a_sample_say_nothing_of_all() {
    let mut host = Host::training();
    host.run_all(60, |processes, window| {
        sampled_turns(&mut processes[0], if window % 5 == 4 { 6 } else { 0 });
    });
    assert_eq!(host.only(Cause::HostCode).severity, Severity::Low);
}

#[test]
fn long_pauses_that_a_sample_makes_likely_are_said_and_not_graded() {
    let mut host = Host::training();
    host.run(60, |train| sampled_turns(train, 4));
    let chain = host.only(Cause::HostCode);
    assert_eq!(chain.severity, Severity::Low);
    let long = chain.evidence.get("long_pauses_share").unwrap();
    let said = |what| chain.fix.contains(what);
    assert!(long > 0.1 && said("num_workers") && said("CUDA graphs"), "{long}: {}", chain.fix);
}

#[test]
fn many_long_pauses_of_a_sample_are_those_of_all() {
    let mut host = Host::training();
    host.run(60, |train| sampled_turns(train, 20));
    assert_eq!(host.only(Cause::HostCode).severity, Severity::Medium);
}

#[test]
fn threads_that_take_turns_are_evaluated_together() {
    let mut host = Host::training();
    host.run(30, |train| {
        train.on(100).launches(10_000, 8 * US).pauses(10_000, 80 * US);
        let autograd = Task("pt_autograd_0", 100, Relation::Thread);
        train.waits(Reason::Futex, autograd, 1_100 * MS, 1_090 * MS);
        train.on(101).launches(20_000, 8 * US).pauses(20_000, 45 * US);
        train.waits(Reason::Futex, Task("train", 100, Relation::Thread), 900 * MS, 890 * MS);
    });
    let chain = host.only(Cause::HostCode);
    assert_eq!((chain.severity, chain.victim.tid), (Severity::Low, 101));
    assert_eq!(chain.evidence.get("computed_share"), Some(0.88));
}

#[test]
fn a_process_that_launched_more_before_is_graded_by_what_it_lost() {
    let mut host = Host::training();
    host.run(20, |train| {
        train.on(100).rests(Phase::Sync, GPU).launches(30_000, 5 * US).pauses(30_000, 20 * US);
    });
    host.is_silent();
    host.processes[0].on(100).rests(Phase::Host, State::Running);
    host.run(UNTIL_NAMED, slow_data_set);
    assert_eq!(host.only(Cause::HostCode).severity, Severity::Medium);
    host.run(8, slow_data_set);
    // 78 % of its launches are gone, and nobody else took the time.
    assert_eq!(host.only(Cause::HostCode).severity, Severity::High);
}

#[test]
fn a_cpu_that_becomes_slower_as_a_whole_makes_it_no_worse() {
    let mut host = Host::training();
    host.run(20, |train| {
        train.on(100).rests(Phase::Sync, GPU).launches(30_000, 5 * US).pauses(30_000, 20 * US);
    });
    host.processes[0].on(100).rests(Phase::Host, State::Running);
    let slower = |launch| {
        move |train: &mut Process| {
            train.launches(20_000, launch).pauses(20_000, 100 * US - launch);
        }
    };
    host.run(20, slower(7_500));
    assert_eq!(host.only(Cause::HostCode).severity, Severity::Low);
    // Each launch takes as long as before, so that the code takes longer.
    host.run(8, slower(5 * US));
    assert_eq!(host.only(Cause::HostCode).severity, Severity::High);
}

#[test]
fn code_that_leaves_launches_cold_is_graded_by_what_it_lost() {
    let mut host = Host::training();
    host.run(20, |train| {
        train.on(100).rests(Phase::Sync, GPU).launches(30_000, 5 * US).pauses(30_000, 20 * US);
    });
    host.processes[0].on(100).rests(Phase::Host, State::Running);
    // Launches right after its code take twice as long; the others take as long as before.
    host.run(8, |train| {
        train.launches(3_000, 5 * US).launches(12_000, 10 * US).pauses(15_000, 120 * US);
    });
    assert_eq!(host.only(Cause::HostCode).severity, Severity::High);
}

#[test]
fn launches_that_others_make_fewer_do_not_make_it_worse() {
    let mut host = Host::training();
    host.run(20, slow_data_set);
    host.run(10, |train| {
        train.on(100).launches(4_000, 5 * US).pauses(40, 20 * MS).pauses(3_960, 95 * US);
        train.off(Phase::Host, Reason::Preempted, 760 * MS);
    });
    // A slow window, as by the hypervisor.
    host.run(10, slow_data_set);
    host.run(1, |train| {
        train.on(100).launches(3_000, 5 * US).pauses(30, 40 * MS).pauses(2_970, 190 * US);
    });
    let chains = host.chains();
    let own = chains.iter().find(|chain| chain.cause == Cause::HostCode).unwrap();
    assert_eq!(own.severity, Severity::Medium, "{}", own.sentence);
}

#[test]
fn it_is_no_worse_than_medium_in_a_process_that_never_did_better() {
    let mut host = Host::training();
    host.run(100, slow_data_set);
    assert_eq!(host.only(Cause::HostCode).severity, Severity::Medium);
}

#[test]
fn what_others_take_of_a_thread_that_computes_is_theirs() {
    let mut host = trained();
    host.run(6, |train| {
        slow_data_set(train);
        train.waits(Reason::Io, KERNEL, 300 * MS, 0);
    });
    let causes: HashMap<_, _> =
        host.chains().into_iter().map(|own| (own.cause, own.attributed_seconds())).collect();
    assert_eq!(causes.len(), 2, "{causes:?}");
    assert!((causes[&Cause::BlockIo] - 1.8).abs() < 0.01, "{causes:?}");
    let own = 6.0 * (host_time_of_slow_data_set() - 300 * MS) as f64 / 1e9;
    assert!((causes[&Cause::HostCode] / own - 1.0).abs() < 0.01, "{causes:?}");
}

#[test]
fn where_the_code_computes_follows_in_the_sentence() {
    let mut host = scenarios::computing();
    let id = host.only(Cause::HostCode).id.clone();
    let function = |function: &str, file: &str, line, share| CodeShare {
        function: function.into(),
        file: file.into(),
        line,
        share,
    };
    let code = vec![
        function("__getitem__", "dataset.py", 42, 0.71),
        function("", "libjpeg.so.8", 0, 0.12),
        function("collate", "loader.py", 7, 0.06),
        function("step", "train.py", 9, 0.01),
    ];
    host.engine.set_code(HashMap::from([(id, code.clone()), ("another".into(), Vec::new())]));
    let expected = "hardly waited for the GPU (1.4 %): 71 % in dataset.py:42 (__getitem__), 12 % in libjpeg.so.8, \
                    6.0 % in loader.py:7 (collate). Measured over";
    let sentence = |host: &Host| host.only(Cause::HostCode).sentence.clone();
    assert!(sentence(&host).contains(expected), "{}", sentence(&host));
    host.run(2, slow_data_set);
    assert!(sentence(&host).contains(expected), "until it is sampled again: {}", sentence(&host));
    let json = serde_json::to_string(host.only(Cause::HostCode)).unwrap();
    assert!(json.contains(r#"{"file":"libjpeg.so.8","share":0.12}"#), "{json}");
    assert_eq!(serde_json::from_str::<Chain>(&json).unwrap().code, code);
}
