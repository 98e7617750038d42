//! `gpucause-workload`: a CUDA program that knows the truth about itself. It makes exact numbers of calls, suffers on
//! purpose, and prints what it did and saw by its own clock as one JSON object.
#![allow(unsafe_code, reason = "calls C functions by address and steers the scheduler")]

mod caller;
mod cli;
mod fault;
mod gpu;
mod kernels;
mod libraries;
mod loss;
mod operation;
mod process;
mod quantiles;
mod scenario;
mod session;
mod shared;
mod thread_stats;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;

use cli::{Arguments, Scenario};

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One line: whoever reads it is a test that shows it.
            eprintln!("gpucause-workload: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if let Scenario::Burn(burn) = &arguments.scenario {
        return process::burn(burn, arguments.common.wait);
    }
    if let Scenario::LayOut { to } = &arguments.scenario {
        return lay_out(to);
    }
    if arguments.common.with_parent {
        process::end_with_parent();
    }
    if let Some(name) = &arguments.common.comm {
        process::set_comm(name)?;
    }
    let common = &arguments.common;
    match &arguments.scenario {
        Scenario::Calls(options) => scenario::calls::run(common, options),
        Scenario::Latency(options) => scenario::latency::run(common, options),
        Scenario::Contend(options) => scenario::contend::run(common, options),
        Scenario::Block(options) => scenario::block::run(common, options),
        Scenario::Rate(options) => scenario::rate::run(common, options),
        Scenario::Split(options) => scenario::split::run(common, options),
        Scenario::Spawn(options) => scenario::spawn::run(common, options),
        Scenario::Crowd(options) => scenario::crowd::run(common, options),
        Scenario::Churn(options) => scenario::churn::run(common, options),
        Scenario::Unwind(options) => scenario::unwind::run(common, options),
        Scenario::Fault(options) => scenario::fault::run(common, options),
        Scenario::Lockstep(options) => scenario::lockstep::run(common, options),
        Scenario::Host(options) => scenario::host::run(common, options),
        Scenario::Workers(options) => scenario::workers::run(common, options),
        Scenario::Idle => scenario::idle::run(common),
        Scenario::Burn(_) | Scenario::LayOut { .. } => Ok(()),
    }
}

fn lay_out(to: &Path) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    gpucause_fake_cuda::lay_out(program.parent().unwrap_or(Path::new(".")), to)?;
    std::fs::copy(&program, to.join("gpucause-workload"))?;
    Ok(())
}
