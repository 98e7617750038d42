use gpucause_abi::op::Api;
use gpucause_abi::state::Reason;
use serde_json::{Value, json};

use crate::export::tests::{BEGIN, MS, MadeUp, call, python, statistics, waited};
use crate::export::{Format, Selection};
use crate::recording::{Call, Completeness, Kind};

fn exported(made_up: &MadeUp) -> String {
    let (written, out) = made_up.exported(Format::Hlog, &Selection::default());
    written.unwrap();
    String::from_utf8(out).unwrap()
}

fn decoded(made_up: &MadeUp) -> Vec<Value> {
    match python::decoded("hlog", exported(made_up).as_bytes()) {
        Value::Array(histograms) => histograms,
        other => panic!("{other}"),
    }
}

#[test]
fn the_package_of_hdr_histogram_reads_a_histogram_a_second_and_op() {
    let mut made_up = MadeUp::new();
    let launch = || call(Api::Runtime, "cudaLaunchKernel");
    for number in 0..1000_u64 {
        made_up.add((0, 100), number * 2 * MS, number * 1000, launch());
    }
    made_up.add((0, 100), 5 * MS, 7 * MS, waited(Reason::Futex));
    made_up.add((0, 100), 1500 * MS, 123, call(Api::Runtime, "cudaMalloc"));
    made_up.add((0, 100), 7_200_000 * MS, u64::MAX, launch());
    made_up.events.sort_by_key(|event| event.start_ns);
    let said = decoded(&made_up);
    let reported: Vec<_> = said
        .iter()
        .map(|reported| (reported["tag"].as_str().unwrap(), reported["count"].as_u64().unwrap()))
        .collect();
    let launches = "gpu-1/trainer[100]/cudaLaunchKernel";
    let mallocs = "gpu-1/trainer[100]/cudaMalloc";
    assert_eq!(reported, [(launches, 500), (launches, 500), (mallocs, 1), (launches, 1)]);
    let begin = (BEGIN / 1_000_000) as f64;
    assert_eq!((&said[0]["begin_ms"], &said[0]["end_ms"]), (&json!(begin), &json!(begin + 1000.0)));
    assert_eq!(said[3]["begin_ms"], json!(begin + 7_200_000.0));
    let within = |value: &Value, exact: f64| {
        let error = (value.as_f64().unwrap() - exact).abs() / exact;
        assert!(error < 1e-3, "{value} is not {exact}");
    };
    within(&said[0]["max"], 499_000.0);
    within(&said[0]["p50"], 249_000.0);
    assert_eq!(said[2]["max"], 123);
    within(&said[3]["max"], (1_u64 << 53) as f64);
}

#[test]
fn first_launches_are_apart() {
    let mut made_up = MadeUp::new();
    for (at, cold) in [(0, Some(true)), (1, Some(false)), (2, None)] {
        let Kind::Call(launch) = call(Api::Runtime, "cudaLaunchKernel") else { unreachable!() };
        made_up.add((0, 100), at, 1, Kind::Call(Call { cold, ..launch }));
    }
    let said = decoded(&made_up);
    let counts: Vec<_> =
        said.iter().map(|reported| (&reported["tag"], &reported["count"])).collect();
    let launches = "gpu-1/trainer[100]/cudaLaunchKernel";
    let cold = json!(format!("{launches}/cold"));
    assert_eq!(counts, [(&json!(launches), &json!(2)), (&cold, &json!(1))]);
}

#[test]
fn clocks_that_differ_do_not_put_intervals_out_of_order() {
    let said = decoded(&MadeUp::two_nodes());
    let begins: Vec<f64> =
        said.iter().map(|reported| reported["begin_ms"].as_f64().unwrap()).collect();
    assert!(begins.is_sorted(), "{begins:?}");
    let begin = (BEGIN / 1_000_000) as f64;
    assert_eq!((begins[0], begins[4], said.len()), (begin, begin + 1000.0, 8));
}

#[test]
fn names_are_data_that_ends_neither_a_tag_nor_a_line() {
    let mut made_up = MadeUp::new();
    made_up.processes[0].comm = "a,b\n#[BaseTime: 5 (x)]\"\u{e9}".into();
    made_up.add((0, 100), 0, 1, call(Api::Runtime, "cudaMalloc"));
    let said = decoded(&made_up);
    assert_eq!(said[0]["tag"], "gpu-1/a_b_#[BaseTime:_5_(x)]__[100]/cudaMalloc");
}

#[test]
fn a_log_says_which_calls_are_a_sample_and_what_was_left_out() {
    let mut made_up = MadeUp::new();
    made_up.calls.push(statistics("cudaMalloc", Completeness::Sample { stored: 4 }));
    made_up.calls.push(statistics("cudaFree", Completeness::Exact));
    let text = exported(&made_up);
    let sample =
        "#gpu-1/trainer[100]/cudaMalloc is no fair sample: the recording kept 4 of 1000 calls\n";
    assert!(text.contains(sample), "{text}");
    assert!(!text.contains("cudaFree"), "{text}");
    let selection = Selection { at_least_ns: 5, ..Selection::default() };
    let (_, out) = made_up.exported(Format::Hlog, &selection);
    assert!(String::from_utf8(out).unwrap().contains("#Only calls of 5 ns or longer\n"));
}

#[test]
fn a_log_without_calls_is_a_log() {
    assert_eq!(decoded(&MadeUp::new()), [] as [Value; 0]);
}
