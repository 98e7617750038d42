//! No query of rules, alerts, dashboards, runbooks or the README takes the launches of one layer, or of one function, for all of
//! them: a program launches through the runtime and the driver at once.

use super::files::{self, rules};
use gpucause_abi::op::{Class, OPS, Op};
use regex::Regex;
use std::collections::BTreeSet;

/// Series that may be selected by layer, with the reason.
const ALLOWED: [(&str, &str); 1] =
    [("op:gpucause_cuda_call_errors:increase5m", "each layer has its own names of errors")];

/// A label matcher of a selector.
struct Matcher {
    label: String,
    negated: bool,
    value: Regex,
}

impl Matcher {
    fn takes(&self, op: &Op) -> bool {
        let text = match &*self.label {
            "api" => op.api.label(),
            "op" => op.name,
            _ => return true,
        };
        self.value.is_match(text) != self.negated
    }
}

/// Returns the names of the series that text selects, each with its label matchers.
fn selectors(text: &str) -> Vec<(String, Vec<Matcher>)> {
    let selector = r#"([a-zA-Z_:][a-zA-Z0-9_:]*)\{((?:[^{}"]|"(?:[^"\\]|\\.)*")*)\}"#;
    let matcher = r#"(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)""#;
    let (selector, matcher) = (Regex::new(selector).unwrap(), Regex::new(matcher).unwrap());
    // In templates, quotes are inside of quotes.
    let text = text.replace("\\\"", "\"");
    let matchers = |list: &str| {
        let matchers = matcher.captures_iter(list).map(|found| {
            let value = &found[3];
            let is_regex = found[2].ends_with('~');
            let value = if is_regex { value.to_owned() } else { regex::escape(value) };
            Matcher {
                label: found[1].to_owned(),
                negated: found[2].starts_with('!'),
                value: Regex::new(&format!("^(?:{value})$")).unwrap(),
            }
        });
        matchers.collect()
    };
    let found = selector.captures_iter(&text);
    found.map(|found| (found[1].to_owned(), matchers(&found[2]))).collect()
}

/// Returns true if these matchers select no launches, all launches, all of kernels, or all of graphs.
fn takes_launches_of_every_layer(matchers: &[Matcher]) -> bool {
    let of = |is: &dyn Fn(&Op) -> bool| -> BTreeSet<_> {
        let launches = OPS.iter().filter(|op| op.feeds_gpu() && is(op));
        launches.map(|op| (op.api.label(), op.name)).collect()
    };
    let taken = of(&|op| matchers.iter().all(|matcher| matcher.takes(op)));
    let whole: [&dyn Fn(&Op) -> bool; 3] =
        [&|_| true, &|op| op.class == Class::Launch, &|op| op.class == Class::Graph];
    taken.is_empty() || whole.iter().any(|is| taken == of(is))
}

/// Selectors that take a part of the launches for all of them.
fn partial(text: &str) -> Vec<String> {
    let is_allowed = |name: &str| ALLOWED.iter().any(|(allowed, _)| *allowed == name);
    let wrong = selectors(text)
        .into_iter()
        .filter(|(name, matchers)| !is_allowed(name) && !takes_launches_of_every_layer(matchers));
    wrong.map(|(name, _)| name).collect()
}

/// All text with queries, and where it is.
fn texts() -> Vec<(String, String)> {
    let mut texts: Vec<_> = files::documents();
    texts.extend(files::dashboard_queries());
    for (file, rule) in rules() {
        let own = rule.annotations.values().chain([&rule.expr]);
        texts.extend(own.map(|text| (format!("{file}, {}", rule.name()), text.clone())));
    }
    assert!(texts.len() > 200, "only {} texts", texts.len());
    texts
}

#[test]
fn no_query_selects_the_launches_of_one_layer_or_function() {
    let wrong: Vec<_> = texts()
        .iter()
        .flat_map(|(place, text)| partial(text).into_iter().map(move |name| (place.clone(), name)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_query_corrects_for_time_in_which_launches_were_not_observed() {
    let corrects =
        r"/ (on|ignoring|\(|rate|gpucause)[^\n]*gpucause_probe_(duty_ratio|observed_seconds_total)";
    let corrects = Regex::new(corrects).unwrap();
    let wrong = texts().into_iter().filter(|(_, text)| corrects.is_match(text));
    let wrong: Vec<_> = wrong.map(|(place, _)| place).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn a_query_of_one_layer_or_function_is_recognised_and_one_of_all_is_not() {
    for part in [
        r#"sum(rate(gpucause_cuda_call_offcpu_seconds_total{api="runtime"}[1m]))"#,
        r#"a_bucket{cold="false",op="cudaLaunchKernel"}"#,
        r#"a_count{op=~"cu(da)?Launch.*", api="driver"}"#,
        r#"a_total{api!="driver", op!~".*Synchronize"}"#,
    ] {
        assert_eq!(partial(part).len(), 1, "{part}");
    }
    for all in [
        r#"a_count{pid="7", op=~"cu(da)?(Graph)?Launch.*"}"#,
        r#"a_count{op=~"cu(da)?Launch.*"} / b_count{op=~"cu(da)?GraphLaunch"}"#,
        r#"a_count{api="runtime", op=~".*Synchronize|cudaMemcpy"}"#,
        r#"printf "a_total{instance=%q,reason=\"futex\"}""#,
        r#"op:gpucause_cuda_call_errors:increase5m{api="runtime"}"#,
    ] {
        assert_eq!(partial(all), Vec::<String>::new(), "{all}");
    }
}
