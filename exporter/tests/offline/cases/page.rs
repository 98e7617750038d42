//! The pages: what they show is what the commands on them answer, and other numbers they state none.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use clap::Parser as _;
use gpucause::cli::Cli;
use regex::Regex;

use super::{cases, folder, investigations};

/// Stands for lines that are left out.
const LEFT_OUT: &str = "...";

/// A part of a page.
#[derive(Debug)]
enum Part {
    /// Lines as they are.
    Text(String),
    /// A command, as it is written, and what it answers.
    Command { typed: String, answer: Vec<String> },
}

/// Takes the blocks of a page apart that show a command line and its answer.
fn parts(page: &str) -> Vec<Part> {
    let mut parts = vec![Part::Text(String::new())];
    let mut lines = page.lines();
    let mut is_console = false;
    while let Some(line) = lines.next() {
        is_console = if line.starts_with("```") { line == "```console" } else { is_console };
        if is_console && let Some(first) = line.strip_prefix("$ ") {
            let mut typed = first.to_owned();
            while typed.matches('"').count() % 2 == 1 {
                typed = format!("{typed}\n{}", lines.next().expect("the end of the command"));
            }
            parts.push(Part::Command { typed, answer: Vec::new() });
            continue;
        }
        match parts.last_mut() {
            Some(Part::Command { answer, .. }) if !line.starts_with("```") => {
                answer.push(line.to_owned());
            }
            Some(Part::Text(text)) => *text += &format!("{line}\n"),
            _ => parts.push(Part::Text(format!("{line}\n"))),
        }
    }
    parts
}

/// Runs a command and returns the lines that it prints, without spaces at their ends.
fn answer(typed: &str) -> Vec<String> {
    assert!(typed.starts_with("gpucause "), "{typed}");
    let programs = Path::new(env!("CARGO_BIN_EXE_gpucause")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-c", typed])
        .current_dir(folder())
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{typed}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.trim_end().into()).collect()
}

/// Returns true if lines are those of an answer, except for those that are left out.
fn is_shown(shown: &[String], mut answer: &[String]) -> bool {
    let mut free = false;
    for chunk in shown.split(|line| line == LEFT_OUT) {
        let at = if free {
            answer.windows(chunk.len().max(1)).position(|lines| chunk.is_empty() || lines == chunk)
        } else {
            answer.starts_with(chunk).then_some(0)
        };
        match at {
            Some(at) => answer = &answer[at + chunk.len()..],
            None if chunk.is_empty() => {}
            None => return false,
        }
        free = true;
    }
    answer.is_empty() || shown.last().is_some_and(|line| line == LEFT_OUT)
}

/// Returns the paragraphs of an answer that were shown before: their first lines are the same.
fn shown_again(shown: &[String], answer: &[String]) -> Vec<String> {
    if !shown.iter().any(|line| line == LEFT_OUT) {
        return answer.to_vec();
    }
    let mut again = Vec::new();
    for chunk in shown.split(|line| line == LEFT_OUT) {
        if let Some(first) = chunk.first() {
            let paragraph = answer.iter().skip_while(|line| *line != first);
            again.extend(paragraph.take_while(|line| !line.is_empty()).cloned());
            again.push(LEFT_OUT.to_owned());
        } else if again.is_empty() {
            again.push(LEFT_OUT.to_owned());
        }
    }
    again
}

#[test]
fn what_a_page_shows_is_what_its_commands_answer() {
    for case in cases() {
        let (page, mut blessed, mut commands) = (case.page(), String::new(), 0);
        for part in parts(&page) {
            match part {
                Part::Text(text) => blessed += &text,
                Part::Command { typed, answer: shown } => {
                    let answer = answer(&typed);
                    commands += 1;
                    if env::var_os("GPUCAUSE_BLESS").is_some() {
                        let lines = shown_again(&shown, &answer).join("\n");
                        let _ = writeln!(blessed, "$ {typed}\n{lines}");
                        continue;
                    }
                    assert!(
                        is_shown(&shown, &answer),
                        "{}: {typed}\nanswers\n{}",
                        case.name,
                        answer.join("\n")
                    );
                }
            }
        }
        assert!(commands >= 2, "{} shows {commands} commands", case.name);
        if env::var_os("GPUCAUSE_BLESS").is_some() {
            fs::write(case.file("md"), blessed).unwrap();
        }
    }
}

/// A page without its blocks, its links, and what is written as code.
fn prose(page: &str) -> String {
    let blocks = Regex::new(r"(?s)```.*?```").unwrap();
    let spans = Regex::new(r"`[^`]*`|\[[^\]]*\]\([^)]*\)").unwrap();
    spans.replace_all(&blocks.replace_all(page, ""), "").into_owned()
}

#[test]
fn a_page_states_numbers_only_where_they_are_compared() {
    for case in cases() {
        let prose = prose(&case.page());
        let digits: Vec<_> = prose.lines().filter(|line| line.contains(char::is_numeric)).collect();
        assert!(digits.is_empty(), "{}: {digits:?}", case.name);
        assert!(case.page().is_ascii(), "{}", case.name);
    }
}

#[test]
fn a_page_tells_what_was_seen_asked_wrong_and_done_and_that_the_gpu_was_played() {
    for case in cases() {
        let page = case.page();
        let headings: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, ["Symptom", "Questions", "Cause", "Fix"], "{}", case.name);
        for part in ["stand-in", &format!("`gpucause demo {}`", case.name), "gpucause explain"] {
            assert!(page.contains(part), "{} says nothing of {part}", case.name);
        }
        let demo = ["gpucause", "demo", &case.name];
        assert!(Cli::try_parse_from(demo).is_ok(), "{demo:?}");
    }
}

#[test]
fn the_index_and_a_runbook_lead_to_each_case_and_links_lead_somewhere() {
    let pages: BTreeMap<String, String> = fs::read_dir(investigations())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|own| own == "md"))
        .map(|path| {
            (path.file_stem().unwrap().to_str().unwrap().into(), fs::read_to_string(path).unwrap())
        })
        .collect();
    let link = Regex::new(r"\]\(([^)#\s]+)[^)]*\)").unwrap();
    for case in cases() {
        let leads = |page: &str| page.contains(&format!("](cases/{}.md)", case.name));
        assert!(leads(&pages["README"]), "{} is not in the index", case.name);
        let mut runbooks = pages.iter().filter(|(name, _)| name.starts_with("Gpucause"));
        assert!(runbooks.any(|(_, page)| leads(page)), "no runbook leads to {}", case.name);
        for found in link.captures_iter(&case.page()) {
            let path = folder().join(&found[1]);
            assert!(path.exists(), "{} links to {}", case.name, &found[1]);
        }
    }
}
