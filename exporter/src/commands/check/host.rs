//! The kernel and the namespaces.

use gpucause_observe::visibility::{Obstacle, PID_NAMESPACE, obstacles};
use gpucause_probes::feature::{AttachMode, FeatureError, Features};
use gpucause_probes::hazard::HazardSeverity;

use super::{Point, State};

/// Oldest kernel in whose scheduler programs can allocate map entries: [`Features::require`].
const OLDEST_KERNEL: (u32, u32) = (6, 1);
/// Kernel, hazards, features and what hides processes.
pub(super) fn report() -> Vec<Point> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut points = vec![kernel(release)];
    points.extend(gpucause_probes::hazard::hazards(release).into_iter().map(|hazard| {
        let state = match hazard.severity {
            HazardSeverity::Warning => State::Failed,
            HazardSeverity::Note => State::Ok,
        };
        Point::new(state, format!("hazard {}", hazard.name), hazard.harm).advise(hazard.remedy)
    }));
    points.extend(features());
    points.extend(processes());
    points
}

fn kernel(release: &str) -> Point {
    let (major, minor) = OLDEST_KERNEL;
    let point = match version_of(release) {
        Some(version) if version >= OLDEST_KERNEL => Point::ok("kernel", release),
        Some(_) if Features::detect().is_ok() => {
            let detail = format!("{release}: has the eBPF of a newer kernel; not tested");
            Point::ok("kernel", detail)
        }
        Some(_) => Point::new(State::Failed, "kernel", format!("{release} is too old"))
            .advise(format!("use {major}.{minor} or newer")),
        None => Point::new(State::Failed, "kernel", format!("unknown kernel version {release:?}"))
            .advise(format!("use Linux {major}.{minor} or newer")),
    };
    point.required()
}

fn features() -> Vec<Point> {
    let features = match Features::detect() {
        Ok(features) => features,
        Err(error @ FeatureError::TooOld) => {
            let point = Point::new(State::Failed, "eBPF map allocator", error.to_string());
            return vec![point.advise("use Linux 6.1 or newer").required()];
        }
        Err(error) => {
            let point = Point::new(State::Failed, "BTF", error.to_string());
            return vec![point.advise("use a kernel with CONFIG_DEBUG_INFO_BTF").required()];
        }
    };
    let detail = match features.best_mode() {
        AttachMode::Session => "uprobe.session: one link per library",
        AttachMode::Multi => {
            "uprobe.multi: two links per library (uprobe.session needs kernel 6.13)"
        }
        AttachMode::Perf => {
            "perf events: two per function, and CAP_SYS_ADMIN is required (uprobe.multi needs kernel 6.6)"
        }
    };
    let btf = Point::ok("BTF", gpucause_probes::feature::BTF_PATH).required();
    vec![btf, Point::ok("uprobes", detail)]
}

/// Checks for obstacles that hide processes. A missing capability is a point of its own.
fn processes() -> Vec<Point> {
    let obstacles = obstacles();
    let hidden = obstacles.iter().filter(|own| !own.subject.starts_with("CAP_"));
    let failed = |own: &Obstacle| Point {
        required: own.hides_all,
        ..Point::failed(own.subject, own.reason)
    };
    let mut points: Vec<_> = hidden.map(failed).collect();
    if !obstacles.contains(&PID_NAMESPACE) {
        points.push(Point::ok(PID_NAMESPACE.subject, "the host's").required());
    }
    points
}

fn version_of(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_compared_by_their_first_two_numbers() {
        assert_eq!(version_of("6.18.44-generic"), Some((6, 18)));
        assert_eq!(version_of("6.1"), Some(OLDEST_KERNEL));
        assert_eq!(version_of("rolling"), None);
        assert!(version_of("5.15.0-1").is_some_and(|version| version < OLDEST_KERNEL));
    }
}
