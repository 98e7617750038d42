//! The grammar, and messages that name what is wrong.

use super::*;

fn function(op: &str, behaviour: Behaviour) -> Clause {
    Clause::Function { op: op.into(), behaviour }
}

fn message(script: &str) -> String {
    parse(script).expect_err("the script is wrong").to_string()
}

#[test]
fn a_script_is_read_clause_by_clause() {
    let script = "nest=1; cudaLaunchKernel:spin=5us;\
                  cudaMemcpy:gbps=10,ret=2@100 ;dir=/var/tmp;cudaStreamSynchronize:sleep=200us;";
    assert_eq!(
        parse(script),
        Ok(vec![
            Clause::Nest(true),
            function("cudaLaunchKernel", Behaviour { base_ns: 5_000, ..Behaviour::default() }),
            function(
                "cudaMemcpy",
                Behaviour { bytes_per_ns: 10.0, ret: 2, ret_every: 100, ..Behaviour::default() }
            ),
            Clause::Dir("/var/tmp".into()),
            function(
                "cudaStreamSynchronize",
                Behaviour { way: Way::Sleep, base_ns: 200_000, ..Behaviour::default() }
            ),
        ])
    );
    assert_eq!(parse(""), Ok(Vec::new()));
}

#[test]
fn every_way_of_spending_time_has_a_key() {
    for (name, way) in Way::ALL {
        let behaviour = parse_spec("op", &format!("{name}=3ms")).expect("a way is a key");
        assert_eq!((behaviour.way, behaviour.base_ns), (way, 3_000_000));
        assert_eq!(way.name(), name);
        let known = ScriptError::Key { op: String::new(), key: String::new() }.to_string();
        assert!(known.contains(name), "{name} is missing in: {known}");
    }
}

#[test]
fn a_call_may_hang_and_return_a_negative_code() {
    let behaviour = parse_spec("op", "hang,ret=-1").expect("both are keys");
    assert!(behaviour.hang);
    assert_eq!((behaviour.ret, behaviour.ret_every), (-1, 1));
}

#[test]
fn times_have_a_unit() {
    assert_eq!(parse_time("7ns"), Some(7));
    assert_eq!(parse_time("2s"), Some(2_000_000_000));
    for wrong in ["", "5", "us", "1.5ms", "-1us", "5 us", "5m", "99999999999999999999s"] {
        assert_eq!(parse_time(wrong), None, "{wrong:?}");
    }
}

#[test]
fn messages_name_the_wrong_token() {
    for (script, tokens) in [
        ("cudaMemcpy", &["`cudaMemcpy`", "op:key=value"][..]),
        (":spin=1us", &["`:spin=1us`"]),
        ("a:spin=1us;b:spni=1us", &["`b`", "`spni`"]),
        ("cudaFree:sleep=5", &["`cudaFree`", "`sleep=5`", "200us"]),
        ("cudaFree:gbps=0", &["`gbps=0`", "GB/s"]),
        ("cudaFree:gbps=nan", &["`gbps=nan`"]),
        ("cudaFree:ret=2@0", &["`ret=2@0`", "code@N"]),
        ("cudaFree:ret", &["`ret=`"]),
        ("cudaFree:hang=1", &["`hang=1`"]),
        ("cudaFree:spin=1us,poll=1us", &["`poll` after `spin`"]),
        ("nest=2", &["`nest=2`", "0 or 1"]),
        ("dir=", &["`dir=`", "a path"]),
    ] {
        let message = message(script);
        for token in tokens {
            assert!(message.contains(token), "{script}: {message} lacks {token}");
        }
    }
}
