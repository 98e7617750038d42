//! Exact quantiles of measured durations.

use serde_json::{Value, json};

/// Count, sum, p50, p90, p99 and maximum (nearest rank), in nanoseconds.
pub(crate) fn of(durations: &[u64]) -> Value {
    let mut sorted = durations.to_vec();
    sorted.sort_unstable();
    let rank = |percent: usize| {
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or(0)
    };
    json!({
        "count": sorted.len(),
        "sum_ns": sorted.iter().sum::<u64>(),
        "p50_ns": rank(50),
        "p90_ns": rank(90),
        "p99_ns": rank(99),
        "max_ns": sorted.last().copied().unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let durations: Vec<u64> = (1..=1000).rev().collect();
        assert_eq!(
            of(&durations),
            json!({"count": 1000, "sum_ns": 500_500, "p50_ns": 500, "p90_ns": 900, "p99_ns": 990, "max_ns": 1000})
        );
        assert_eq!(of(&[7])["p99_ns"], 7);
        assert_eq!(of(&[])["max_ns"], 0);
    }
}
