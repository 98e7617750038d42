//! Losses by culprit.

use super::Loss;

/// Cardinality limit of culprits per chain.
const MAX_CULPRITS: usize = 32;

/// Scales losses so that they are at most so many seconds in all.
pub(crate) fn fit(losses: &mut [Loss], most: f64) {
    let all = total(losses);
    if all > most {
        losses.iter_mut().for_each(|loss| loss.seconds *= most.max(0.0) / all);
    }
}

/// Sums losses by name, most time first. There is a PID where one process alone has that name.
pub(crate) fn add(losses: &mut Vec<Loss>, added: &[Loss]) {
    for new in added {
        match losses.iter_mut().find(|own| own.comm == new.comm) {
            Some(own) => {
                own.seconds += new.seconds;
                own.pid = own.pid.filter(|_| own.pid == new.pid);
            }
            None => losses.push(new.clone()),
        }
    }
    losses.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    losses.truncate(MAX_CULPRITS);
}

pub(crate) fn total(losses: &[Loss]) -> f64 {
    losses.iter().map(|loss| loss.seconds).sum()
}
