//! Negotiation of the format and the compression through the `Accept` and `Accept-Encoding` headers.

use super::Format;

/// A media range of an `Accept` header, or a coding of `Accept-Encoding`.
struct Item<'a> {
    name: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    quality: f32,
}

impl Item<'_> {
    fn parameter(&self, key: &str) -> Option<&str> {
        self.parameters.iter().find(|(k, _)| k.eq_ignore_ascii_case(key)).map(|&(_, v)| v)
    }
}

/// Splits at `separator` outside double quotes.
fn split_unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    text.split(move |c: char| {
        quoted ^= c == '"';
        c == separator && !quoted
    })
}

fn items(header: &str) -> impl Iterator<Item = Item<'_>> {
    split_unquoted(header, ',').filter_map(|item| {
        let mut parts = split_unquoted(item, ';').map(str::trim);
        let name = parts.next().filter(|name| !name.is_empty())?;
        let mut quality = 1.0;
        let mut parameters = Vec::new();
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            let (key, value) = (key.trim(), value.trim().trim_matches('"'));
            if key.eq_ignore_ascii_case("q") {
                quality = value.parse::<f32>().ok().filter(|q| (0.0..=1.0).contains(q))?;
            } else {
                parameters.push((key, value));
            }
        }
        Some(Item { name, parameters, quality })
    })
}

/// How precisely a media range names a format: 3 with its parameters, 2 by name, 1 by `text/*`, 0 by `*/*`; `None` when it
/// does not. Parameters of no meaning for the format, such as `escaping`, are ignored. Protobuf must be named with its message
/// and encoding; a wildcard never means it.
fn precision(item: &Item<'_>, format: Format) -> Option<u8> {
    let (media, version, family) = match format {
        Format::Text => ("text/plain", "0.0.4", "text/*"),
        Format::OpenMetrics => ("application/openmetrics-text", "1.0.0", "application/*"),
        Format::Protobuf => {
            let is_named = item.name.eq_ignore_ascii_case("application/vnd.google.protobuf")
                && item.parameter("proto") == Some("io.prometheus.client.MetricFamily")
                && item.parameter("encoding") == Some("delimited");
            return is_named.then_some(3);
        }
    };
    if item.name.eq_ignore_ascii_case(media) {
        return match item.parameter("version") {
            None => Some(2),
            Some(requested) => (requested == version).then_some(3),
        };
    }
    if item.name.eq_ignore_ascii_case(family) {
        return Some(1);
    }
    (item.name == "*/*").then_some(0)
}

/// The format of the highest quality in the `Accept` header. Of equal ones it is the first one named, and text when one
/// wildcard means both. Text is also the default without the header, and when the header names no known format.
#[must_use]
pub fn format(accept: &str) -> Format {
    let items: Vec<_> = items(accept).collect();
    let mut best: Option<(f32, usize, Format)> = None;
    for format in Format::ALL {
        let most_precise = items
            .iter()
            .enumerate()
            .filter_map(|(position, item)| Some((precision(item, format)?, position, item)))
            .max_by_key(|&(precision, position, _)| (precision, std::cmp::Reverse(position)));
        let Some((_, position, item)) = most_precise.filter(|(_, _, item)| item.quality > 0.0)
        else {
            continue;
        };
        let better = best.is_none_or(|(quality, first, _)| {
            item.quality > quality || (item.quality >= quality && position < first)
        });
        if better {
            best = Some((item.quality, position, format));
        }
    }
    best.map_or(Format::Text, |(_, _, format)| format)
}

/// Returns true if the `Accept-Encoding` header allows gzip.
#[must_use]
pub fn gzip(accept_encoding: &str) -> bool {
    let mut wildcard = false;
    for item in items(accept_encoding) {
        if item.name.eq_ignore_ascii_case("gzip") || item.name.eq_ignore_ascii_case("x-gzip") {
            return item.quality > 0.0;
        }
        wildcard |= item.name == "*" && item.quality > 0.0;
    }
    wildcard
}

#[cfg(test)]
mod tests;
