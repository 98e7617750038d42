//! The state of each probe, as exported.

use gpucause_observe::nvml;
use gpucause_observe::observation::{AttachGap, ProbeState};
use gpucause_probes::Status;
use gpucause_probes::registry::{LibraryStatus, LibraryVerdict};
use gpucause_probes::verdict::ProgramVerdict;

/// Characters of a path that a label holds.
const MAX_LABEL_CHARS: usize = 256;

pub(super) fn probe_states(status: &Status) -> Vec<ProbeState> {
    let host = status.programs.iter().map(|program| ProbeState {
        probe: program.program.into(),
        library: String::new(),
        verdict: program.verdict.label(),
    });
    let libraries = status.libraries.iter().map(|library| ProbeState {
        probe: "call".into(),
        library: library_label(library),
        verdict: match library.verdict {
            LibraryVerdict::Attached if !library.replaced.is_empty() => "attached_partly",
            LibraryVerdict::Attached if library.slow.is_empty() => "attached",
            LibraryVerdict::Attached => "attached_slow",
            LibraryVerdict::NoSymbols => "unsupported",
            LibraryVerdict::SingleStepped => "disabled",
            LibraryVerdict::Broken(_) | LibraryVerdict::Refused(_) => "broken",
            LibraryVerdict::OverLimit => "over_limit",
        },
    });
    let none = (!status.enabled).then(|| ProbeState {
        probe: "call".into(),
        library: String::new(),
        verdict: ProgramVerdict::Disabled.label(),
    });
    host.chain(libraries).chain(none).collect()
}

/// The driver's library is exported like a probe.
pub(super) fn nvml_state(state: &nvml::NvmlState) -> ProbeState {
    ProbeState {
        probe: "nvml".into(),
        library: state.library.clone(),
        verdict: state.verdict.label(),
    }
}

/// Bounded, since whoever names the file chooses it.
fn library_label(library: &LibraryStatus) -> String {
    library.path.to_string_lossy().chars().take(MAX_LABEL_CHARS).collect()
}

pub(super) fn attach_gaps(libraries: &[LibraryStatus]) -> Vec<AttachGap> {
    let gap = |library: &LibraryStatus| {
        library.max_gap.map(|gap| AttachGap { library: library_label(library), gap })
    };
    libraries.iter().filter_map(gap).collect()
}
