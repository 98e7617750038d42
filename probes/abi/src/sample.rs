//! Samples of what threads run, as stored by the kernel programs.

use crate::c_record::{CRecord, records};
use crate::python::{PythonLayout, RawPythonFrame};
use crate::{ProcId, Tgid, Tid};

/// Innermost frames of a sample that are kept.
pub const SAMPLE_FRAMES: usize = 16;
/// Samples of a thread per second of its CPU time. A prime, so that it is in step with nothing.
pub const SAMPLES_PER_SECOND: u32 = 49;
/// Most threads that are sampled at a time.
pub const MAX_SAMPLED: usize = 16;
/// [`SampledRecord`]'s `within` of a thread that is sampled wherever it runs.
pub const SAMPLED_ANYWHERE: u32 = 1;
/// [`SampledRecord`]'s `within` of a thread that is sampled outside traced calls only.
pub const SAMPLED_HOST: u32 = 2;
/// [`SampleKey`]'s `kind` of return addresses, in `code`.
pub const SAMPLE_NATIVE: u32 = 1;
/// [`SampleKey`]'s `kind` of Python frames.
pub const SAMPLE_PYTHON: u32 = 2;

records! {
    /// A thread that is sampled. Written by user space; its last field by the programs.
    SampledRecord as "sampled" {
        proc_id: u32,
        tgid: u32,
        /// A `SAMPLED_` constant.
        within: u32,
        /// 1 when `python` is set.
        has_python: u32,
        /// Where Python frames of its process are.
        python: PythonLayout,
        /// CPython's record of the thread, once found; its id is checked each time.
        python_thread: u64,
    }

    /// A thread ran this code: the key of the `samples` map, whose value is a count.
    SampleKey as "sample" {
        proc_id: u32,
        tid: u32,
        /// A `SAMPLE_` constant.
        kind: u32,
        frames: u32,
        /// Code objects or return addresses, the innermost first.
        code: [u64; SAMPLE_FRAMES],
        /// These words encode the positions in the code of Python frames.
        instruction: [u64; SAMPLE_FRAMES],
    }
}

/// When a thread is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Within {
    /// Wherever it runs.
    Anywhere,
    /// Outside traced calls.
    HostCode,
}

/// A thread to sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampledThread {
    /// Its process.
    pub process: ProcId,
    /// The PID of that.
    pub tgid: Tgid,
    /// The thread.
    pub tid: Tid,
    /// When it is sampled.
    pub within: Within,
    /// Where Python frames of its process are, if it has any.
    pub python: Option<PythonLayout>,
}

/// Frames of a sample, the innermost first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SampledFrames {
    /// Python frames.
    Python(Vec<RawPythonFrame>),
    /// The address that was executed, and return addresses as far as frame pointers lead.
    Native(Vec<u64>),
}

/// A thread ran this code in so many samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The process.
    pub process: ProcId,
    /// The thread.
    pub tid: Tid,
    /// Where it was.
    pub frames: SampledFrames,
    /// How often.
    pub count: u64,
}

impl SampledThread {
    /// The record for the programs.
    pub fn record(&self) -> SampledRecord {
        let within = match self.within {
            Within::Anywhere => SAMPLED_ANYWHERE,
            Within::HostCode => SAMPLED_HOST,
        };
        SampledRecord {
            proc_id: self.process.0,
            tgid: self.tgid.0,
            within,
            has_python: self.python.is_some().into(),
            python: self.python.unwrap_or(PythonLayout::NONE),
            python_thread: 0,
        }
    }
}

impl SampleKey {
    /// The sample that was counted under this key.
    pub fn sample(&self, count: u64) -> Sample {
        let frames = (self.frames as usize).min(SAMPLE_FRAMES);
        let frames = if self.kind == SAMPLE_PYTHON {
            let python = self.code.iter().zip(&self.instruction).take(frames);
            let python = python.map(|(&code, &instruction)| RawPythonFrame { code, instruction });
            SampledFrames::Python(python.collect())
        } else {
            SampledFrames::Native(self.code[..frames].to_vec())
        };
        Sample { process: ProcId(self.proc_id), tid: Tid(self.tid), frames, count }
    }
}
