//! Has launches watched for as much of the time as [`Duty`] says: takes their probes away and puts them back, of all libraries at
//! once. One driver library serves all processes of a host, and the driver's part of a launch would count as a launch of its own
//! while the runtime's probe is away.
//!
//! Probes come and go one after the other, over milliseconds. What is told is exact all the same, since the programs count
//! launches only between [`LaunchWatch::begin`] and [`LaunchWatch::end`], and the time between those is what is told.

use std::time::{Duration, Instant};

use gpucause_abi::Nanos;

use crate::duty::{CHANGE_SHARE, Duty, Window};
use crate::launch_watch::LaunchWatch;
use crate::registry::{Attach, Registry};

/// How long hits are counted for while launches are watched all the time.
const WINDOW: Duration = Duration::from_secs(1);
/// From one time that launches are watched to the next, at least and at most: rates over a minute always have some.
const PERIODS: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(30));
/// How long launches in flight have to return before their probes go.
const DRAIN: Duration = Duration::from_millis(10);
/// From this ratio on it is not worth the change.
const NEARLY_ALL: f64 = 0.95;
/// Assumed where the cost of a hit could not be measured.
const TYPICAL_HIT_COST: Nanos = Nanos(1_400);

#[derive(Debug, Clone, Copy)]
enum Stage {
    Watching {
        until: Instant,
        began: Instant,
    },
    /// `watched` is none when the window was judged already.
    Draining {
        until: Instant,
        watched: Option<Duration>,
    },
    Away {
        until: Instant,
    },
}

/// Carries out what is decided.
#[derive(Debug)]
pub(crate) struct Shedding {
    duty: Duty,
    watch: LaunchWatch,
    hit_cost: Nanos,
    stage: Stage,
    /// When the hits of this window began to be counted.
    opened: Instant,
    /// How long removing and replacing the probes took last.
    transition: Duration,
}

impl Shedding {
    pub(crate) fn new(watch: LaunchWatch, hit_cost: Option<Nanos>, now: Instant) -> Self {
        Self {
            duty: Duty::new(None),
            watch,
            hit_cost: hit_cost.unwrap_or(TYPICAL_HIT_COST),
            stage: Stage::Watching { until: now + WINDOW, began: now },
            opened: now,
            transition: Duration::ZERO,
        }
    }

    /// Goes by this budget from now on.
    pub(crate) fn set_budget(&mut self, budget: Option<f64>) {
        if budget != self.duty.budget() {
            self.duty.set_budget(budget);
        }
    }

    /// Share of the time for which launches are watched.
    pub(crate) fn ratio(&self) -> f64 {
        let ratio = self.duty.ratio();
        if ratio < NEARLY_ALL { ratio } else { 1.0 }
    }

    /// Does what is due. Returns when it wants to be asked again.
    pub(crate) fn tick<A: Attach>(
        &mut self,
        now: Instant,
        registry: &mut Registry<A::Links>,
        attacher: &mut A,
    ) -> Result<Instant, libbpf_rs::Error> {
        match self.stage {
            Stage::Watching { until, .. } | Stage::Draining { until, .. } if now < until => {
                return Ok(until);
            }
            Stage::Away { until } if now < until && self.duty.sheds() => return Ok(until),
            Stage::Watching { began, .. } if self.duty.sheds() && self.ratio() < 1.0 => {
                self.watch.end()?;
                self.stage = Stage::Draining { until: now + DRAIN, watched: Some(now - began) };
            }
            Stage::Watching { .. } => {
                self.judge(now - self.opened)?;
                self.open(now)?;
                self.stage = Stage::Watching { until: now + WINDOW, began: now };
                if self.ratio() < 1.0 {
                    tracing::info!(
                        ratio = self.ratio(),
                        "launches are watched part of the time, to keep to the budget"
                    );
                    self.watch.end()?;
                    self.stage = Stage::Draining { until: now + DRAIN, watched: None };
                }
            }
            Stage::Draining { watched, .. } => {
                registry.shed_launches(attacher);
                self.watch.cut()?;
                self.transition += now.elapsed();
                if let Some(watched) = watched {
                    self.judge(watched)?;
                }
                self.stage = Stage::Away { until: self.opened + self.period() };
            }
            Stage::Away { .. } => {
                self.open(now)?;
                registry.restore_launches(attacher);
                self.watch.begin()?;
                let began = Instant::now();
                let period = self.period();
                self.transition = began - now;
                let length = if self.ratio() < 1.0 {
                    period.mul_f64(self.ratio())
                } else {
                    tracing::info!("launches are watched all the time");
                    WINDOW
                };
                self.stage = Stage::Watching { until: began + length, began };
            }
        }
        let (Stage::Watching { until, .. } | Stage::Draining { until, .. } | Stage::Away { until }) =
            self.stage;
        Ok(until)
    }

    /// Who launches while probes come or go can be held up for as long as that takes: it is to happen so rarely that it takes no
    /// more than its part of the budget.
    fn period(&self) -> Duration {
        let (least, most) = PERIODS;
        let part = self.duty.budget().unwrap_or(1.0) * CHANGE_SHARE;
        let period = self.transition.as_secs_f64() / part;
        Duration::from_secs_f64(period.clamp(least.as_secs_f64(), most.as_secs_f64()))
    }

    fn open(&mut self, now: Instant) -> Result<(), libbpf_rs::Error> {
        self.opened = now;
        self.watch.open_window()
    }

    fn judge(&mut self, watched: Duration) -> Result<(), libbpf_rs::Error> {
        let (launches, others) = self.watch.busiest()?;
        let (elapsed, hit_cost) = (self.opened.elapsed(), self.hit_cost);
        self.duty.judge(&Window { elapsed, watched, launches, others, hit_cost });
        Ok(())
    }

    /// All probes go: nothing counts until [`Self::begin`].
    pub(crate) fn end(&mut self) -> Result<(), libbpf_rs::Error> {
        self.watch.end()
    }

    /// They are gone.
    pub(crate) fn cut(&mut self) -> Result<(), libbpf_rs::Error> {
        self.watch.cut()
    }

    /// All probes come back, those on launches too.
    pub(crate) fn begin(&mut self, now: Instant) -> Result<(), libbpf_rs::Error> {
        self.watch.begin()?;
        self.open(now)?;
        self.stage = Stage::Watching { until: now + WINDOW, began: now };
        Ok(())
    }
}
