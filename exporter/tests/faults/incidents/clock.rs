//! Shipped files on a faster clock: every duration is a part of what it was, so that what waits for an alert waits less.

const MILLIS: [(char, u64); 4] = [('s', 1_000), ('m', 60_000), ('h', 3_600_000), ('d', 86_400_000)];

/// A duration such as `90s`.
fn millis(word: &str) -> Option<u64> {
    let unit = word.chars().next_back()?;
    let (_, each) = MILLIS.into_iter().find(|(name, _)| *name == unit)?;
    Some(word[..word.len() - 1].parse::<u64>().ok()? * each)
}

fn is_of_word(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '.')
}

/// The text of a file of rules, alerts or routes with its durations that many times as short. Names such as `rate1m` stay.
pub(crate) fn sped_up(text: &str, speed: u32) -> String {
    let mut rest = text;
    let mut sped_up = String::with_capacity(text.len());
    while let Some(first) = rest.chars().next() {
        let length = match rest.find(|character| !is_of_word(character)) {
            Some(0) => first.len_utf8(),
            Some(end) => end,
            None => rest.len(),
        };
        let (word, after) = rest.split_at(length);
        match millis(word) {
            Some(millis) => sped_up += &format!("{}ms", millis / u64::from(speed)),
            None => sped_up += word,
        }
        rest = after;
    }
    sped_up
}

#[test]
fn durations_are_shorter_and_names_and_numbers_stay() {
    let text =
        "record: process:x:rate1m\nexpr: rate(x[1m:15s] offset 1h) > 0.5 and y > 3\nfor: 2m\n";
    let third = "record: process:x:rate1m\nexpr: rate(x[20000ms:5000ms] offset 1200000ms) > 0.5 and y > 3\nfor: 40000ms\n";
    assert_eq!(sped_up(text, 3), third);
    assert_eq!(sped_up("'1d', 10s", 1), "'86400000ms', 10000ms");
}
