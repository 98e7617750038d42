//! The answers: `GPUCAUSE_FAKE_NVML` over the defaults.
//!
//! `key=value;key=value`, where a value may be a comma-separated list with one entry a GPU (the last counts for the rest):
//! `gpus=2;util=97,40;mem_used=8000000000`. `processes` lists `pid:bytes` joined by `+` for each GPU; on one that is split
//! (`mig=1`) they are on its `mig_devices` instances in turn. `unsupported` lists keys joined by `+` that each GPU refuses to
//! answer, every call on a `lost` GPU fails, and while the file `hang` exists no call returns.

use std::collections::HashMap;
use std::sync::OnceLock;

const VARIABLE: &str = "GPUCAUSE_FAKE_NVML";

const DEFAULTS: [(&str, &str); 26] = [
    ("gpus", "1"),
    ("name", "NVIDIA Stand-in 80GB"),
    ("driver", "575.57.08"),
    ("util", "97"),
    ("mem_util", "40"),
    ("mem_total", "85899345920"),
    ("mem_reserved", "536870912"),
    ("mem_used", "17179869184"),
    ("temperature", "54"),
    ("power_mw", "412000"),
    ("sm_clock", "1755"),
    ("mem_clock", "2619"),
    ("video_clock", "1545"),
    ("energy_mj", "1000000"),
    ("throttle", "0"),
    ("mig", "0"),
    ("mig_devices", "2"),
    ("mem_temp", "61"),
    ("replays", "3"),
    ("ecc_corrected", "5"),
    ("ecc_uncorrected", "0"),
    ("xid", "0"),
    ("lost", "0"),
    ("unsupported", ""),
    ("hang", ""),
    ("processes", ""),
];

pub(crate) struct Values(HashMap<&'static str, String>);

/// The values of this process. A wrong variable ends it with code 64.
pub(crate) fn values() -> &'static Values {
    static VALUES: OnceLock<Values> = OnceLock::new();
    VALUES.get_or_init(|| match Values::parse(&std::env::var(VARIABLE).unwrap_or_default()) {
        Ok(values) => values,
        Err(message) => {
            eprintln!("gpucause-fake: libnvidia-ml.so.1: {VARIABLE}: {message}");
            std::process::exit(64);
        }
    })
}

fn keys() -> String {
    DEFAULTS.map(|(key, _)| key).join(", ")
}

impl Values {
    fn parse(script: &str) -> Result<Self, String> {
        let mut values: HashMap<_, _> =
            DEFAULTS.iter().map(|(key, value)| (*key, (*value).to_owned())).collect();
        for item in script.split(';').map(str::trim).filter(|item| !item.is_empty()) {
            let (key, value) =
                item.split_once('=').ok_or_else(|| format!("`{item}`: write key=value"))?;
            let slot = values
                .get_mut(key)
                .ok_or_else(|| format!("unknown key `{key}`; write one of {}", keys()))?;
            let is_text = matches!(key, "name" | "driver" | "processes" | "unsupported" | "hang");
            if !is_text && value.split(',').any(|entry| entry.parse::<u64>().is_err()) {
                return Err(format!("`{item}`: write integers, one a GPU, joined by commas"));
            }
            value.clone_into(slot);
        }
        Ok(Self(values))
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    fn entry(&self, key: &str, gpu: usize) -> &str {
        let mut entries = self.text(key).split(',');
        let last = entries.clone().next_back().unwrap_or("");
        entries.nth(gpu).unwrap_or(last)
    }

    pub(crate) fn large(&self, key: &str, gpu: usize) -> u64 {
        self.entry(key, gpu).parse().unwrap_or(0)
    }

    pub(crate) fn number(&self, key: &str, gpu: usize) -> u32 {
        u32::try_from(self.large(key, gpu)).unwrap_or(u32::MAX)
    }

    pub(crate) fn gpus(&self) -> usize {
        self.number("gpus", 0) as usize
    }

    pub(crate) fn supports(&self, key: &str, gpu: usize) -> bool {
        !self.entry("unsupported", gpu).split('+').any(|refused| refused == key)
    }

    /// Blocks while the file `hang` exists.
    pub(crate) fn wait_while_hanging(&self) {
        let sign = self.text("hang");
        while !sign.is_empty() && std::path::Path::new(sign).exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// PID and bytes of device memory.
    pub(crate) fn processes(&self, gpu: usize) -> Vec<(u32, u64)> {
        let list = self.entry("processes", gpu).split('+');
        list.filter_map(|item| {
            let (pid, bytes) = item.split_once(':')?;
            Some((pid.parse().ok()?, bytes.parse().ok()?))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_hold_one_value_a_gpu_and_the_last_repeats() {
        let values = Values::parse("gpus=3;util=97,40;processes=12:34+56:78,").expect("is right");
        assert_eq!(values.gpus(), 3);
        assert_eq!([0, 1, 2].map(|gpu| values.number("util", gpu)), [97, 40, 40]);
        assert_eq!(values.processes(0), [(12, 34), (56, 78)]);
        assert_eq!(values.processes(1), []);
        assert_eq!(values.number("temperature", 0), 54);
    }

    #[test]
    fn messages_name_the_wrong_token() {
        for (script, token) in
            [("utl=1", "`utl`"), ("util", "`util`"), ("util=high", "`util=high`")]
        {
            let message = Values::parse(script).err().expect("is wrong");
            assert!(message.contains(token), "{script}: {message}");
        }
    }
}
