//! When a server wants to be asked again.

use std::time::{Duration, SystemTime};

use hyper::header::{HeaderMap, RETRY_AFTER};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

/// The time from `now` until the server wants the request again, by its `Retry-After`: seconds or a date. `None` where it does not
/// say, or not in a form that is known.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = OffsetDateTime::parse(value, &Rfc2822).ok()?;
    Some(SystemTime::from(at).duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn after(value: &'static str) -> Option<Duration> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_420);
        retry_after(&HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(value))]), now)
    }

    #[test]
    fn seconds_and_dates_are_known_and_nothing_else() {
        assert_eq!(after("120"), Some(Duration::from_secs(120)));
        assert_eq!(after(" 0 "), Some(Duration::ZERO));
        assert_eq!(after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(after("Wed, 21 Oct 2015 07:00:00 GMT"), Some(Duration::ZERO));
        for value in
            ["", "-1", "1.5", "soon", "99999999999999999999", "Wed, 99 Oct 2015 07:28:00 GMT"]
        {
            assert_eq!(after(value), None, "{value}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), SystemTime::now()), None);
    }
}
