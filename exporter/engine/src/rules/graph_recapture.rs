//! CUDA graphs are captured, built or updated repeatedly instead of built once and launched often.

use super::Rule;
use crate::chain::{Cause, Effect, Evidence};
use crate::claim::Span;
use crate::context::Context;
use crate::delta::ThreadDelta;
use crate::detection::{Detection, SelfInflicted};
use crate::graph_builds::{GraphBuilds, is_part_of_making};
use crate::phases::Phases;
use crate::times::{at_most, part, ratio};
use gpucause_abi::op::Class;
use gpucause_abi::snapshot::TimeAccount;
use gpucause_abi::state::Phase;

/// Building's part of the time in graph calls.
fn claim(span: &Span<'_, '_>, thread: &ThreadDelta, _: Phases) -> TimeAccount {
    let in_graphs = part(&thread.time, |phase, _| phase == Phase::Graph);
    at_most(in_graphs, span.delta.time_in(Class::Graph, is_part_of_making))
}

pub(super) const RULE: Rule = Rule {
    cause: Cause::GraphRecapture,
    reads: &["gpucause_cuda_call_duration_seconds", "gpucause_dispatcher_seconds_total"],
    needs: "one graph captured, built or updated a second over several ticks, in time of severity low",
    during_warm_up: false,
    evaluate,
};

fn evaluate(context: &Context<'_>, index: usize) -> Option<Detection> {
    let process = context.processes.get(index)?;
    let (delta, settings) = (&process.short, context.settings);
    let rule = settings.rule(Cause::GraphRecapture);
    let builds = GraphBuilds::of(delta);
    let took = delta.time_in(Class::Graph, is_part_of_making);
    let thread = delta.victim(|thread| thread.in_phase(Phase::Graph))?;
    let taken_share = ratio(took, thread.wall).min(1.0);
    if !builds.is_wasteful(delta)
        || taken_share < rule.min_lost_share.unwrap_or(settings.severities.low)
    {
        return None;
    }
    // Once is a program that starts.
    if GraphBuilds::of(&process.long).made() <= builds.made() {
        return None;
    }
    let size = thread.in_phase(Phase::Graph);
    let explained = ratio(took, size).min(1.0);
    if explained < rule.explained_share.unwrap_or(settings.explained_share) {
        return None;
    }
    let evidence = Evidence::default()
        .with("graphs_built", builds.made() as f64)
        .with("captures", builds.captured as f64)
        .with("graph_updates", builds.updated as f64)
        .with("graph_launches", builds.launched as f64)
        .with("building_seconds", took.as_secs_f64())
        .with("taken_share", taken_share)
        .with("explained_share", explained);
    let doing = SelfInflicted {
        cause: Cause::GraphRecapture,
        effect: Effect::LaunchGap,
        explained,
        size,
        claim,
        claims_earlier: true,
        taken_share,
        mechanism: "captures, builds and updates graphs",
        sentence: "{comm} built or updated {graphs_built|count} CUDA graphs for {graph_launches|count} graph launches, which took \
                    {building_seconds|seconds} ({taken_share|percent} of its time).",
        fix: "Keep shapes and addresses fixed so that one graph fits all steps: pad inputs, mark dynamic dimensions, or keep one graph for each shape.",
    };
    Some(doing.into_detection(index, (process, thread), evidence))
}
