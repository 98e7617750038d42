//! Several faults at once, and one alone.

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{Culprit, Fault, Name, of};
use crate::cli::{Common, FaultOptions};
use crate::gpu::{Gpu, Pace};
use crate::loss::Loss;

/// Everything that goes wrong, each with its own loss.
pub(crate) struct Faults(Vec<(Name, Box<dyn Fault>, Loss)>);

impl Faults {
    /// Makes them. Nothing of CUDA is open yet, which forked processes could not use.
    pub(crate) fn new(common: &Common, options: &FaultOptions) -> Result<Self> {
        let mut all = Vec::new();
        for name in options.names() {
            if !options.and.is_empty() && !name.combines() {
                bail!("--and: {name:?} goes with no other fault");
            }
            let fault = of(name, common, options)?;
            let loss = Loss::new(fault.kind())?;
            all.push((name, fault, loss));
        }
        Ok(Self(all))
    }

    fn each(&mut self, act: impl FnMut(&mut dyn Fault) -> Result<()>) -> Result<()> {
        let mut act = act;
        self.0.iter_mut().try_for_each(|(_, fault, _)| act(&mut **fault))
    }

    /// That of the first one, unless another needs a CPU all the time.
    pub(crate) fn pace(&self) -> Pace {
        let mut paces = self.0.iter().map(|(_, fault, _)| fault.pace());
        let first = paces.next().unwrap_or(Pace::STEADY);
        paces.find(|pace| pace.gpu_ns == 0).unwrap_or(first)
    }

    /// Who is to blame, by cause.
    pub(crate) fn culprits(&self) -> Value {
        let own = |(name, fault, _): &(Name, Box<dyn Fault>, _)| {
            (name.cause().to_owned(), Culprit::to_json(fault.culprit().as_ref()))
        };
        Value::Object(self.0.iter().map(own).collect())
    }

    /// The first one's culprit.
    pub(crate) fn culprit(&self) -> Option<Culprit> {
        self.0.first().and_then(|(_, fault, _)| fault.culprit())
    }

    pub(crate) fn losses(&self) -> Losses {
        Losses(self.0.iter().map(|(name, _, loss)| (*name, loss.clone())).collect())
    }

    pub(crate) fn open(&mut self, gpu: &Gpu) -> Result<()> {
        self.each(|fault| fault.open(gpu))
    }

    pub(crate) fn prepare(&mut self, gpu: &mut Gpu) -> Result<()> {
        self.each(|fault| fault.prepare(gpu))
    }

    pub(crate) fn inject(&mut self, gpu: &mut Gpu) -> Result<()> {
        self.0.iter().try_for_each(|(.., loss)| loss.begin())?;
        self.each(|fault| fault.inject(gpu))
    }

    /// One step of the loop, in which all goes wrong once `faulty`.
    pub(crate) fn step(&mut self, gpu: &mut Gpu, faulty: bool) -> Result<()> {
        if let [(_, fault, loss)] = &mut self.0[..] {
            return fault.step(gpu, faulty.then_some(loss));
        }
        let pace = self.pace();
        for (_, fault, loss) in &mut self.0 {
            fault.before(gpu, faulty.then_some(loss))?;
        }
        gpu.step(&pace)
    }
}

/// Losses so far, by fault; the first is that of the fault that was asked for.
#[derive(Debug, Clone)]
pub(crate) struct Losses(Vec<(Name, Loss)>);

impl Losses {
    /// The kernel's own sum of what the thread that loses has waited for a CPU, also before the injection.
    pub(crate) fn waited_for_cpu_seconds(&self) -> Result<Option<f64>> {
        let first = self.0.first().map(|(_, loss)| loss.waited_for_cpu_ns());
        Ok(first.transpose()?.map(seconds))
    }

    pub(crate) fn so_far(&self) -> Result<Value> {
        let mut losses = serde_json::Map::new();
        for (name, loss) in &self.0 {
            losses.insert(name.cause().to_owned(), json!(seconds(loss.so_far_ns()?)));
        }
        let first = self.0.first().map(|(name, _)| losses[name.cause()].clone());
        Ok(json!({ "lost_seconds": first, "losses": losses }))
    }
}

#[expect(clippy::cast_precision_loss, reason = "no run takes 2^53 ns")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}
