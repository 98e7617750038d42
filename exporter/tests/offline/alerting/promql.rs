//! Reads of PromQL what names series: selectors with their label matchers, and labels that are grouped or matched by. Prometheus'
//! own tools check the grammar.

/// A series that an expression selects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    /// The name of the metric.
    pub(crate) name: String,
    /// The labels that must match, with what they must match.
    pub(crate) matchers: Vec<(String, String)>,
    /// How each of them must match, such as `=~`.
    pub(crate) signs: Vec<String>,
}

/// Series and labels that an expression names.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) selectors: Vec<Selector>,
    /// Labels in the lists of `by`, `without`, `on`, `ignoring`, `group_left` and `group_right`.
    pub(crate) labels: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

/// Words that are neither functions nor metrics, and are followed by no list of labels.
const OPERATORS: [&str; 8] = ["and", "or", "unless", "bool", "offset", "inf", "nan", "atan2"];
/// Words with a list of labels.
const LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Functions whose list of labels may come before what they are of.
const AGGREGATIONS: [&str; 9] =
    ["sum", "avg", "min", "max", "count", "group", "quantile", "topk", "bottomk"];

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_:".contains(c)
}

fn tokens(expression: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = expression.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '"' | '\'' => {
                let mut text = String::new();
                while let Some(next) = rest.next().filter(|&next| next != c) {
                    text.push(if next == '\\' { rest.next().unwrap_or(next) } else { next });
                }
                tokens.push(Token::Text(text));
            }
            '#' => while rest.next_if(|&next| next != '\n').is_some() {},
            // A range is no list of words.
            '[' => while rest.next().is_some_and(|next| next != ']') {},
            c if is_word(c) || c == '$' => {
                let mut word = String::from(c);
                while let Some(next) = rest.next_if(|&next| is_word(next) || next == '.') {
                    word.push(next);
                }
                tokens.push(Token::Word(word));
            }
            c if c.is_whitespace() => {}
            c => tokens.push(Token::Sign(c)),
        }
    }
    tokens
}

/// The words and texts up to the sign that closes a list, and how many tokens they are.
fn list(tokens: &[Token], close: char) -> (Vec<&Token>, usize) {
    let end = tokens.iter().position(|token| *token == Token::Sign(close)).unwrap_or(tokens.len());
    (tokens[..end].iter().filter(|token| !matches!(token, Token::Sign(_))).collect(), end)
}

fn matchers(tokens: &[Token]) -> Vec<(String, String)> {
    let pairs = list(tokens, '}').0;
    let pair = |pair: &[&Token]| match pair {
        [Token::Word(label), Token::Text(value)] => Some((label.clone(), value.clone())),
        _ => None,
    };
    pairs.chunks(2).filter_map(pair).collect()
}

/// The signs between labels and values.
fn signs(tokens: &[Token]) -> Vec<String> {
    let mut signs = Vec::new();
    let mut sign = String::new();
    for token in tokens {
        match token {
            Token::Sign('}') => break,
            Token::Sign(',') | Token::Word(_) => {}
            Token::Sign(part) => sign.push(*part),
            Token::Text(_) => signs.push(std::mem::take(&mut sign)),
        }
    }
    signs
}

/// The selectors that `{__name__=~"a|b", ...}` stands for, from behind its brace.
fn by_name_label(tokens: &[Token]) -> Vec<Selector> {
    let (mut matchers, mut signs) = (matchers(tokens), signs(tokens));
    let Some(place) = matchers.iter().position(|(label, _)| label == "__name__") else {
        return Vec::new();
    };
    let (_, named) = matchers.remove(place);
    signs.remove(place);
    let of = |name: &str| Selector {
        name: name.to_owned(),
        matchers: matchers.clone(),
        signs: signs.clone(),
    };
    named.split('|').map(of).collect()
}

/// Returns the series and labels that `expression` names.
pub(crate) fn names(expression: &str) -> Names {
    let tokens = tokens(expression);
    let mut names = Names::default();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        if *token == Token::Sign('{') {
            names.selectors.extend(by_name_label(&tokens[at..]));
            at += list(&tokens[at..], '}').1;
        }
        let Token::Word(word) = token else { continue };
        let next = tokens.get(at);
        let lower = word.to_ascii_lowercase();
        if LISTS.contains(&&*lower) && next == Some(&Token::Sign('(')) {
            let (labels, length) = list(&tokens[at + 1..], ')');
            let label = |token: &&Token| match token {
                Token::Word(label) => Some(label.clone()),
                _ => None,
            };
            names.labels.extend(labels.iter().filter_map(label));
            at += 1 + length;
        } else if is_series(word, next) {
            let mut selector = Selector { name: word.clone(), ..Selector::default() };
            if next == Some(&Token::Sign('{')) {
                selector.matchers = matchers(&tokens[at + 1..]);
                selector.signs = signs(&tokens[at + 1..]);
                at += 1 + list(&tokens[at + 1..], '}').1;
            }
            names.selectors.push(selector);
        }
    }
    names
}

/// Returns true if a word that is no label names a series, by what follows it.
fn is_series(word: &str, next: Option<&Token>) -> bool {
    let lower = word.to_ascii_lowercase();
    let is_called = match next {
        Some(Token::Sign('(')) => true,
        Some(Token::Word(list)) => AGGREGATIONS.contains(&&*lower) && LISTS.contains(&&**list),
        _ => false,
    };
    let is_number = word.starts_with(|c: char| c.is_ascii_digit() || c == '$');
    !is_called && !is_number && !OPERATORS.contains(&&*lower) && !LISTS.contains(&&*lower)
}

#[test]
fn a_selector_by_the_name_label_names_each_series() {
    let Names { selectors, labels } = names(r#"sum by (op) ({__name__=~"a|b_count", pid="7"})"#);
    let found: Vec<_> = selectors.iter().map(|s| (s.name.as_str(), &*s.matchers)).collect();
    let pid = [("pid".to_owned(), "7".to_owned())];
    assert_eq!(found, [("a", &pid[..]), ("b_count", &pid[..])]);
    assert_eq!(labels, ["op"]);
}

#[test]
fn an_expression_names_its_series_labels_and_matchers() {
    let text = r#"sum by (pid, le) (rate(a_b_bucket{op=~"x{2}.*", cold="false"}[1m])) / on (pid) group_left () up:x_1m offset 5m > bool 0.5"#;
    let Names { selectors, labels } = names(text);
    let found: Vec<_> = selectors.iter().map(|s| (s.name.as_str(), s.matchers.len())).collect();
    assert_eq!(found, [("a_b_bucket", 2), ("up:x_1m", 0)]);
    assert_eq!(selectors[0].matchers[0], ("op".into(), "x{2}.*".into()));
    assert_eq!(selectors[0].signs, ["=~", "="]);
    assert_eq!(labels, ["pid", "le", "pid"]);
}
