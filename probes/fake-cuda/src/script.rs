//! The script language: what each stand-in function does when it is called.
//!
//! ```text
//! script   = clause { ";" clause }
//! clause   = op ":" spec | "nest=0" | "nest=1" | "dir=" path
//! op       = documented name (all its ABI variants), exact symbol, or "*" (every function)
//! spec     = key [ "=" value ] { "," key [ "=" value ] }
//!   WAY=TIME      spends TIME in one way: spin, sleep, woken (sleep, after timers that expire before it has left its CPU),
//!                 futex (wait with a timeout), lock (a mutex released by a thread
//!                 named lock-holder), polled (a lock that both wait for in pieces of 1 ms, while that thread works),
//!                 switched (the same, but the holder wakes nobody and waits until the lock is taken), spun (the same,
//!                 but the holder mostly does not wait either), unseen (the same, but the holder waits for the lock in
//!                 one of six turns, and a pause follows each), work (of a thread named producer, waited for in such
//!                 pieces), poll, pipe, full_pipe (a write), net, io (O_DIRECT reads), page_fault, ioctl, yield; kernel_mappings, kernel_faults, kernel_files (a lock of
//!                 the kernel that a thread named kernel-holder has)
//!   hang          waits for a signal
//!   gbps=N        adds bytes / (N GB/s) to the time
//!   ret=CODE      returns CODE; ret=CODE@N: on every Nth call only
//! TIME     = integer with ns, us, ms or s
//! ```
//!
//! `nest=1` makes the runtime call the driver as the real one does; `dir` holds the files of `io` and `page_fault`.

use std::path::PathBuf;

/// How a call spends its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// On the CPU, in user space.
    Spin,
    /// In `clock_nanosleep`.
    Sleep,
    /// In `clock_nanosleep`, after some until times that have passed: their timers wake a thread that has not left the CPU.
    Woken,
    /// In a futex wait that times out.
    Futex,
    /// In a wait for a mutex that another thread holds.
    Lock,
    /// In futex waits that time out until another thread, busy all the while, ends the last. It waits for the futex, too.
    Polled,
    /// In such waits for what another thread makes, which never waits for it.
    Work,
    /// A lock that is polled, whose holder wakes nobody and waits until it is taken.
    Switched,
    /// A lock like that of [`Way::Switched`], whose holder mostly spins instead of waiting.
    Spun,
    /// A lock that is polled, whose holder mostly spins and waits for it again in one of six turns. A pause follows each.
    Unseen,
    /// In `ppoll` on nothing.
    Poll,
    /// In `read` from a pipe.
    Pipe,
    /// In `write` to a pipe that is full until another thread reads.
    FullPipe,
    /// In `recv` from a socket.
    Net,
    /// In `O_DIRECT` reads of a file.
    Io,
    /// In page faults on an evicted file mapping.
    PageFault,
    /// In an `ioctl` that waits for another thread.
    Ioctl,
    /// In `mmap` and `munmap`, for the lock of the address space.
    Mappings,
    /// In page faults, for the same lock.
    Faults,
    /// In writes, for a file's lock.
    Files,
    /// In `sched_yield`.
    Yield,
}

impl Way {
    /// Every way by its name in scripts.
    pub const ALL: [(&'static str, Self); 21] = [
        ("spin", Self::Spin),
        ("sleep", Self::Sleep),
        ("woken", Self::Woken),
        ("futex", Self::Futex),
        ("lock", Self::Lock),
        ("polled", Self::Polled),
        ("switched", Self::Switched),
        ("spun", Self::Spun),
        ("unseen", Self::Unseen),
        ("work", Self::Work),
        ("poll", Self::Poll),
        ("pipe", Self::Pipe),
        ("full_pipe", Self::FullPipe),
        ("net", Self::Net),
        ("io", Self::Io),
        ("page_fault", Self::PageFault),
        ("ioctl", Self::Ioctl),
        ("kernel_mappings", Self::Mappings),
        ("kernel_faults", Self::Faults),
        ("kernel_files", Self::Files),
        ("yield", Self::Yield),
    ];

    /// The way of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|&(_, way)| way)
    }

    /// The name in scripts.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, way)| *way == self).map_or("", |&(name, _)| name)
    }
}

/// Behaviour of one function. The default does nothing and returns 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Behaviour {
    /// How time is spent; spinning if the script only gives `gbps`.
    pub way: Way,
    /// Time of every call, in nanoseconds.
    pub base_ns: u64,
    /// Bytes a nanosecond that add to the time; 0 for none.
    pub bytes_per_ns: f64,
    /// True if the call waits for a signal.
    pub hang: bool,
    /// Result of every `ret_every`th call.
    pub ret: i32,
    /// Counted from 1.
    pub ret_every: u64,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self { way: Way::Spin, base_ns: 0, bytes_per_ns: 0.0, hang: false, ret: 0, ret_every: 1 }
    }
}

/// One clause of a script.
#[derive(Debug, Clone, PartialEq)]
pub enum Clause {
    /// True if the runtime calls the driver.
    Nest(bool),
    /// Where files are made.
    Dir(PathBuf),
    /// Behaviour of a function.
    Function {
        /// Documented name, symbol, or `*`.
        op: String,
        /// Its behaviour.
        behaviour: Behaviour,
    },
}

/// A script that cannot be followed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ScriptError {
    /// Neither a function nor a setting.
    #[error("`{0}`: write `op:key=value,...`, `nest=0|1` or `dir=PATH`")]
    Clause(String),
    /// A key that is not in the grammar.
    #[error(
        "`{op}`: unknown key `{key}`; write one of spin, sleep, woken, futex, lock, polled, switched, spun, unseen, work, poll, pipe, full_pipe, net, io, page_fault, ioctl, \
         kernel_mappings, kernel_faults, kernel_files, yield, hang, gbps, ret"
    )]
    Key {
        /// The clause's op.
        op: String,
        /// The key.
        key: String,
    },
    /// A value that does not fit its key.
    #[error("`{op}`: `{key}={value}`: write {expected}")]
    Value {
        /// The clause's op.
        op: String,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// The accepted form.
        expected: &'static str,
    },
    /// Two ways in one spec.
    #[error("`{op}`: `{second}` after `{first}`: a call spends its time in one way")]
    TwoWays {
        /// The clause's op.
        op: String,
        /// The first way's name.
        first: &'static str,
        /// The second way's name.
        second: &'static str,
    },
    /// An op that no stand-in library has.
    #[error("`{0}`: no stand-in library exports this function")]
    Op(String),
    /// A setting that could not be put to work.
    #[error("`{setting}`: {reason}")]
    Setting {
        /// The setting and its value.
        setting: String,
        /// Reason of the failure.
        reason: String,
    },
}

const TIME: &str = "an integer with ns, us, ms or s, such as 200us";

/// Reads a time such as `200us`; the result is in nanoseconds.
pub fn parse_time(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

fn parse_ret(value: &str) -> Option<(i32, u64)> {
    match value.split_once('@') {
        None => Some((value.parse().ok()?, 1)),
        Some((code, every)) => {
            Some((code.parse().ok()?, every.parse().ok().filter(|&every| every > 0)?))
        }
    }
}

/// Reads the part of a clause behind the colon; `op` is for messages.
///
/// # Errors
///
/// When a key or value is not of the grammar.
pub fn parse_spec(op: &str, spec: &str) -> Result<Behaviour, ScriptError> {
    let mut behaviour = Behaviour::default();
    let mut way: Option<Way> = None;
    for item in spec.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (key, value) = item.split_once('=').unwrap_or((item, ""));
        let bad = |expected| ScriptError::Value {
            op: op.into(),
            key: key.into(),
            value: value.into(),
            expected,
        };
        if let Some(new) = Way::named(key) {
            if let Some(first) = way {
                let (first, second) = (first.name(), new.name());
                return Err(ScriptError::TwoWays { op: op.into(), first, second });
            }
            behaviour.base_ns = parse_time(value).ok_or_else(|| bad(TIME))?;
            behaviour.way = new;
            way = Some(new);
            continue;
        }
        match key {
            "hang" if value.is_empty() => behaviour.hang = true,
            "hang" => return Err(bad("`hang` without a value")),
            "gbps" => {
                let speed = value.parse::<f64>().ok().filter(|n| n.is_finite() && *n > 0.0);
                behaviour.bytes_per_ns = speed.ok_or_else(|| bad("a number of GB/s above 0"))?;
            }
            "ret" => {
                (behaviour.ret, behaviour.ret_every) =
                    parse_ret(value).ok_or_else(|| bad("a code, or code@N with N above 0"))?;
            }
            _ => return Err(ScriptError::Key { op: op.into(), key: key.into() }),
        }
    }
    Ok(behaviour)
}

/// Reads a setting (`nest`, `dir`); `None` if `name` is not one.
///
/// # Errors
///
/// When the value does not fit.
pub fn parse_setting(name: &str, value: &str) -> Result<Option<Clause>, ScriptError> {
    match (name, value) {
        ("nest", "0") => Ok(Some(Clause::Nest(false))),
        ("nest", "1") => Ok(Some(Clause::Nest(true))),
        ("dir", path) if !path.is_empty() => Ok(Some(Clause::Dir(path.into()))),
        ("nest" | "dir", _) => Err(ScriptError::Value {
            op: "setting".into(),
            key: name.into(),
            value: value.into(),
            expected: if name == "nest" { "0 or 1" } else { "a path" },
        }),
        _ => Ok(None),
    }
}

/// Reads a whole script.
///
/// # Errors
///
/// At the first clause that is not of the grammar.
pub fn parse(script: &str) -> Result<Vec<Clause>, ScriptError> {
    let clauses = script.split(';').map(str::trim).filter(|clause| !clause.is_empty());
    clauses
        .map(|clause| {
            if let Some((name, value)) = clause.split_once('=')
                && let Some(setting) = parse_setting(name.trim(), value.trim())?
            {
                return Ok(setting);
            }
            match clause.split_once(':') {
                Some((op, spec)) if !op.trim().is_empty() => {
                    let op = op.trim().to_owned();
                    let behaviour = parse_spec(&op, spec)?;
                    Ok(Clause::Function { op, behaviour })
                }
                _ => Err(ScriptError::Clause(clause.into())),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
