//! A chain at its first detection.

use super::Cost;
use crate::chain::{Chain, Course, Effect, Severity, Victim, losses};
use crate::detection::Detection;

pub(super) fn chain_of(
    detection: Detection,
    victim: Victim,
    severity: Severity,
    cost: Cost,
    unix: f64,
) -> Chain {
    let mut chain = Chain {
        id: id_of(&detection, &victim, unix),
        cause: detection.cause,
        effect: detection.effect,
        severity,
        victim,
        culprit: detection.culprit,
        explained: detection.explained,
        lost_seconds: cost.lost.as_secs_f64(),
        losses: cost.losses,
        evidence: detection.evidence,
        path: detection.path,
        sentence: String::new(),
        fix: detection.fix,
        first_seen: unix,
        last_seen: unix,
        ongoing: Some(true),
        code: Vec::new(),
        course: Course::default(),
    };
    losses::fit(&mut chain.losses, chain.lost_seconds);
    chain.set_attributed_seconds(cost.attributed.as_secs_f64());
    let window = chain.evidence.get(Chain::WINDOW);
    chain.record_window(Some(severity), window, unix);
    chain
}

fn id_of(detection: &Detection, victim: &Victim, unix: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "seconds since the epoch; values out of range are clamped"
    )]
    let deciseconds = (unix * 10.0) as u64;
    let hang = if detection.effect == Effect::Hang { "-hang" } else { "" };
    format!("{deciseconds:x}-{}-{}{hang}", victim.pid, detection.cause)
}
