use super::*;

const KNOWN: [&str; 3] = ["calls", "host", "waits"];

fn parse(query: &str) -> Result<Selection, SelectionError> {
    Selection::parse(query, &KNOWN)
}

#[test]
fn a_query_that_names_no_collectors_selects_all() {
    for query in ["", "&", "=", "x=y", "collect=calls", "Collect[]=nonsense", "a&b=%41+&="] {
        assert_eq!(parse(query), Ok(Selection::All), "{query}");
    }
}

#[test]
fn collectors_are_selected_however_they_are_escaped() {
    let only = |names: &[&'static str]| Ok(Selection::Only(names.to_vec()));
    for (query, expected) in [
        ("collect[]=calls", only(&["calls"])),
        ("collect%5B%5D=calls&collect%5b%5d=waits", only(&["calls", "waits"])),
        ("%63ollect[]=c%61ll%73&x=%20", only(&["calls"])),
        ("collect[]=host&collect[]=host&collect[]=host", only(&["host"])),
        ("exclude[]=host", Ok(Selection::Without(vec!["host"]))),
    ] {
        assert_eq!(parse(query), expected, "{query}");
    }
}

#[test]
fn a_selection_includes_what_it_says() {
    let included = |query: &str| -> Vec<_> {
        let selection = parse(query).unwrap();
        KNOWN.into_iter().filter(|name| selection.includes(name)).collect()
    };
    assert_eq!(included(""), KNOWN);
    assert_eq!(included("collect[]=waits&collect[]=calls"), ["calls", "waits"]);
    assert_eq!(included("exclude[]=host&exclude[]=calls"), ["waits"]);
    assert_eq!(included("exclude[]=host&exclude[]=calls&exclude[]=waits"), [""; 0]);
}

#[test]
fn an_unknown_collector_is_refused_with_those_there_are() {
    for query in [
        "collect[]=Calls",
        "collect[]",
        "exclude[]=",
        "collect[]=calls&collect[]=%2B",
        "exclude[]=calls+",
    ] {
        let error = parse(query).unwrap_err().to_string();
        assert!(error.starts_with("unknown collector \""), "{error}");
        assert!(error.ends_with("known collectors: calls, host, waits"), "{error}");
    }
}

#[test]
fn both_at_once_are_refused() {
    assert_eq!(parse("exclude[]=calls&collect[]=host"), Err(SelectionError::Combined));
}

#[test]
fn a_broken_escape_is_refused() {
    for query in [
        "collect[]=%",
        "collect[]=%4",
        "collect[]=%zz",
        "collect[]=%+1",
        "%=calls",
        "x&collect[]=%ff%fe",
    ] {
        assert!(matches!(parse(query), Err(SelectionError::Malformed(_))), "{query}");
    }
}

#[test]
fn a_refusal_repeats_only_so_much_and_no_control_characters() {
    let error = parse(&format!("collect[]=%0a%00{}", "x".repeat(10_000))).unwrap_err().to_string();
    assert!(error.len() < 200, "{error}");
    assert!(!error.contains(char::is_control), "{error}");
}
