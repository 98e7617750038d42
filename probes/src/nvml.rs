//! Reads GPUs from the NVIDIA driver through `libnvidia-ml`, loaded at run time.
//!
//! Any call can block for as long as the driver likes: use a dedicated thread. A failing call leaves only its own value
//! missing.

use std::ffi::OsStr;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, EventSet, Nvml};

/// File name of the library.
pub const LIBRARY: &str = "libnvidia-ml.so.1";

/// `NVML_FI_DEV_MEMORY_TEMP`: in degrees Celsius.
const MEMORY_TEMPERATURE: u32 = 82;
/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: u32 = 1;
/// Most events read from a GPU at once.
const MAX_EVENTS: usize = 64;
/// Separates the GPU's name and the profile in the name of an instance.
const MIG: &str = "MIG ";

/// The library is not usable.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No library, so no driver.
    #[error("{library} cannot be loaded: {reason}")]
    Absent {
        /// The library that was to be loaded.
        library: String,
        /// Message of the loader.
        reason: String,
    },
    /// The library does not work.
    #[error("{library} does not work: {reason}; nvidia-smi may say more")]
    Broken {
        /// The library that was loaded.
        library: String,
        /// Message of the library.
        reason: String,
    },
}

/// The library, loaded and initialised.
#[derive(Debug)]
pub struct Library {
    nvml: Nvml,
    driver: String,
}

impl Library {
    /// Loads [`LIBRARY`] or another file.
    ///
    /// # Errors
    /// When the library is missing or has no driver.
    pub fn open(library: &OsStr) -> Result<Self, OpenError> {
        let name = || library.to_string_lossy().into_owned();
        let nvml = Nvml::builder().lib_path(library).init().map_err(|error| match error {
            NvmlError::LibloadingError(error) => {
                OpenError::Absent { library: name(), reason: error.to_string() }
            }
            error => OpenError::Broken { library: name(), reason: error.to_string() },
        })?;
        let driver = nvml.sys_driver_version().unwrap_or_default();
        Ok(Self { nvml, driver })
    }

    /// Driver version; empty if unknown.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Opens the GPUs and subscribes to their errors.
    ///
    /// # Errors
    /// When the driver does not return the number of GPUs.
    pub fn session(&self) -> Result<Session<'_>, OpenError> {
        let count = self.nvml.device_count().map_err(|error| OpenError::Broken {
            library: LIBRARY.into(),
            reason: error.to_string(),
        })?;
        let mut session = Session { nvml: &self.nvml, gpus: (0..count).map(|_| None).collect() };
        session.find();
        Ok(session)
    }
}

/// Handles of the GPUs.
#[derive(Debug)]
pub struct Session<'a> {
    nvml: &'a Nvml,
    /// By index; `None` for GPUs that do not respond.
    gpus: Vec<Option<Handle<'a>>>,
}

#[derive(Debug)]
struct Handle<'a> {
    device: Device<'a>,
    identity: Identity,
    /// `None` where XID errors are not reported.
    events: Option<EventSet<'a>>,
    last_xid: u64,
}

/// Identity of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its number.
    pub index: u32,
    /// Its UUID, such as `GPU-...`.
    pub uuid: String,
    /// Its model.
    pub name: String,
    /// Where it is on the bus, as `domain:bus:device.function`.
    pub pci_bus_id: String,
}

/// Device memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// Free.
    pub free: u64,
    /// In use.
    pub used: u64,
    /// Taken by the driver.
    pub reserved: u64,
}

/// Utilisation, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utilization {
    /// Time in which a kernel ran.
    pub gpu: u32,
    /// Time in which device memory was read or written.
    pub memory: u32,
}

/// State of a GPU; `None` for values that it does not report.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpu {
    /// Which it is.
    pub identity: Identity,
    /// Utilisation.
    pub utilization: Option<Utilization>,
    /// Clock of the multiprocessors, in MHz.
    pub sm_clock: Option<u32>,
    /// Clock of the memory, in MHz.
    pub memory_clock: Option<u32>,
    /// Temperature, in degrees Celsius.
    pub temperature: Option<u32>,
    /// Temperature of the memory, in degrees Celsius.
    pub memory_temperature: Option<f64>,
    /// Power, in milliwatts.
    pub power_mw: Option<u32>,
    /// Energy since the driver was loaded, in millijoules.
    pub energy_mj: Option<u64>,
    /// Memory.
    pub memory: Option<Memory>,
    /// Number of the last XID error since the session began; 0 without one.
    pub last_xid: Option<u64>,
    /// PCIe replays.
    pub pcie_replays: Option<u32>,
    /// Clock throttle reasons, as bits.
    pub clock_reasons: Option<u64>,
    /// Corrected memory errors since the driver was loaded.
    pub ecc_corrected: Option<u64>,
    /// Uncorrected memory errors since the driver was loaded.
    pub ecc_uncorrected: Option<u64>,
    /// Its MIG instances.
    pub instances: Vec<Instance>,
    /// PIDs of compute processes on the GPU itself, not on an instance.
    pub processes: Vec<u32>,
}

impl Gpu {
    /// Returns true if any value is reported.
    pub const fn answers(&self) -> bool {
        self.memory.is_some()
            || self.temperature.is_some()
            || self.power_mw.is_some()
            || self.sm_clock.is_some()
            || self.utilization.is_some()
            || self.clock_reasons.is_some()
    }
}

/// A MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its UUID, such as `MIG-...`.
    pub uuid: String,
    /// Its profile, such as `1g.10gb`.
    pub profile: String,
    /// GPU instance ID.
    pub id: Option<u32>,
    /// Its memory.
    pub memory: Option<Memory>,
    /// PIDs of the processes that compute on it.
    pub processes: Vec<u32>,
}

impl Session<'_> {
    /// Opens GPUs that did not respond before.
    fn find(&mut self) {
        for (slot, index) in self.gpus.iter_mut().zip(0..).filter(|(slot, _)| slot.is_none()) {
            *slot = Handle::find(self.nvml, index)
                .inspect_err(|error| tracing::debug!(gpu = index, %error, "a GPU does not respond"))
                .ok();
        }
    }

    /// Returns true if the host has no GPU.
    pub const fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Reads all GPUs.
    pub fn read(&mut self) -> Vec<Gpu> {
        self.find();
        self.gpus.iter_mut().flatten().map(Handle::read).collect()
    }

    /// Clock throttle reasons by UUID. Cheap.
    pub fn clock_reasons(&mut self) -> Vec<(&str, Option<u64>)> {
        let reasons = |handle: &Handle<'_>| {
            handle.device.current_throttle_reasons().ok().map(|reasons| reasons.bits())
        };
        self.gpus.iter().flatten().map(|gpu| (gpu.identity.uuid.as_str(), reasons(gpu))).collect()
    }
}

impl<'a> Handle<'a> {
    fn find(nvml: &'a Nvml, index: u32) -> Result<Self, NvmlError> {
        let device = nvml.device_by_index(index)?;
        let identity = Identity {
            index,
            uuid: device.uuid()?,
            name: device.name().unwrap_or_default(),
            pci_bus_id: device.pci_info().map(|pci| pci.bus_id).unwrap_or_default(),
        };
        let events = nvml
            .create_event_set()
            .map_err(|error| error.to_string())
            .and_then(|set| {
                device
                    .register_events(EventTypes::CRITICAL_XID_ERROR, set)
                    .map_err(|error| error.to_string())
            })
            .inspect_err(|error| tracing::debug!(gpu = index, error, "XID errors are not reported"))
            .ok();
        Ok(Self { device, identity, events, last_xid: 0 })
    }

    fn read(&mut self) -> Gpu {
        self.take_errors();
        let device = &self.device;
        let (instances, processes) = match instances(device) {
            Some(instances) => (instances, Vec::new()),
            None => (Vec::new(), processes(device)),
        };
        let ecc = |kind| device.total_ecc_errors(kind, EccCounter::Volatile).ok();
        Gpu {
            identity: self.identity.clone(),
            utilization: device
                .utilization_rates()
                .ok()
                .map(|rates| Utilization { gpu: rates.gpu, memory: rates.memory }),
            sm_clock: device.clock_info(Clock::SM).ok(),
            memory_clock: device.clock_info(Clock::Memory).ok(),
            temperature: device.temperature(TemperatureSensor::Gpu).ok(),
            memory_temperature: memory_temperature(device),
            power_mw: device.power_usage().ok(),
            energy_mj: device.total_energy_consumption().ok(),
            memory: memory(device),
            last_xid: self.events.as_ref().map(|_| self.last_xid),
            pcie_replays: device.pcie_replay_counter().ok(),
            clock_reasons: device.current_throttle_reasons().ok().map(|reasons| reasons.bits()),
            ecc_corrected: ecc(MemoryError::Corrected),
            ecc_uncorrected: ecc(MemoryError::Uncorrected),
            instances,
            processes,
        }
    }

    /// Reads pending XID errors without waiting.
    fn take_errors(&mut self) {
        let Some(events) = &self.events else { return };
        for _ in 0..MAX_EVENTS {
            match events.wait(0).map(|event| event.event_data) {
                Ok(Some(XidError::Value(xid))) => self.last_xid = xid,
                Ok(Some(XidError::Unknown)) => self.last_xid = 999,
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }
}

fn memory(device: &Device<'_>) -> Option<Memory> {
    let memory = device.memory_info().ok()?;
    Some(Memory { free: memory.free, used: memory.used, reserved: memory.reserved })
}

fn memory_temperature(device: &Device<'_>) -> Option<f64> {
    let mut samples = device.field_values_for(&[FieldId(MEMORY_TEMPERATURE)]).ok()?;
    match samples.pop()?.ok()?.value.ok()? {
        SampleValue::F64(degrees) => Some(degrees),
        SampleValue::U32(degrees) => Some(degrees.into()),
        SampleValue::U64(degrees) => Some(degrees as f64),
        SampleValue::I64(degrees) => Some(degrees as f64),
    }
}

fn processes(device: &Device<'_>) -> Vec<u32> {
    let running = device.running_compute_processes().unwrap_or_default();
    running.into_iter().map(|process| process.pid).collect()
}

/// MIG instances; `None` when MIG is off.
fn instances(device: &Device<'_>) -> Option<Vec<Instance>> {
    device.mig_mode().ok().filter(|mode| mode.current == MIG_ENABLED)?;
    let slots = device.mig_device_count().unwrap_or(0);
    let instance = |slot| {
        let part = device.mig_device_by_index(slot).ok()?;
        let name = part.name().unwrap_or_default();
        Some(Instance {
            uuid: part.uuid().ok()?,
            profile: name.rsplit_once(MIG).map_or("", |(_, profile)| profile).to_owned(),
            id: instance_id(&part),
            memory: memory(&part),
            processes: processes(&part),
        })
    };
    Some((0..slots).filter_map(instance).collect())
}

fn instance_id(part: &Device<'_>) -> Option<u32> {
    let ask = part.nvml().lib().nvmlDeviceGetGpuInstanceId.as_ref().ok()?;
    // SAFETY: the handle is used only while `part`, and so the library, lives.
    let handle = unsafe { part.handle() };
    let mut id = 0;
    // SAFETY: the function is the library's own, with the handle it gave out and room for the one number that it writes.
    let code = unsafe { ask(handle, &raw mut id) };
    (code == 0).then_some(id)
}
