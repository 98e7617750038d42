//! Tests of the driver's answers, and of its silence.

use gpucause_page::exposition::Format;
use gpucause_page::family::Exported;

use super::*;
use gpucause_probes::nvml::{Identity, Instance, Memory, Utilization};

fn gpu(index: u32) -> Gpu {
    Gpu {
        identity: Identity {
            index,
            uuid: format!("GPU-{index}"),
            name: "NVIDIA H200".into(),
            pci_bus_id: format!("00000000:0{index}:00.0"),
        },
        utilization: Some(Utilization { gpu: 97, memory: 40 }),
        sm_clock: Some(1_755),
        memory_clock: None,
        temperature: Some(54),
        memory_temperature: Some(61.0),
        power_mw: Some(412_500),
        energy_mj: Some(1_000_000),
        memory: Some(Memory { free: 3 << 20, used: (5 << 20) - 1, reserved: 0 }),
        last_xid: Some(79),
        pcie_replays: Some(3),
        clock_reasons: Some(0x44),
        ecc_corrected: Some(5),
        ecc_uncorrected: Some(0),
        instances: Vec::new(),
        processes: vec![10, 11],
    }
}

fn split() -> Gpu {
    let part = |n: u32| Instance {
        uuid: format!("MIG-{n}"),
        profile: "1g.10gb".into(),
        id: Some(n),
        memory: Some(Memory { free: 1 << 20, used: 2 << 20, reserved: 0 }),
        processes: vec![11 + n],
    };
    Gpu { instances: vec![part(1), part(2)], processes: Vec::new(), ..gpu(1) }
}

fn page(gpus: &[Gpu]) -> String {
    let foreign = families::of(gpus, "575.57.08", "n1").into_iter().map(Arc::new).collect();
    String::from_utf8(Format::Text.encode(&Exported { own: Vec::new(), foreign })).unwrap()
}

#[test]
fn samples_have_dcgms_names_units_and_labels() {
    let page = page(&[gpu(0)]);
    let labels = "{gpu=\"0\",UUID=\"GPU-0\",pci_bus_id=\"00000000:00:00.0\",device=\"nvidia0\",\
                  modelName=\"NVIDIA H200\",Hostname=\"n1\",DCGM_FI_DRIVER_VERSION=\"575.57.08\"}";
    for (name, value) in [
        ("SM_CLOCK", "1755"),
        ("MEMORY_TEMP", "61"),
        ("GPU_TEMP", "54"),
        ("POWER_USAGE", "412.5"),
        ("TOTAL_ENERGY_CONSUMPTION", "1000000"),
        ("PCIE_REPLAY_COUNTER", "3"),
        ("GPU_UTIL", "97"),
        ("MEM_COPY_UTIL", "40"),
        ("XID_ERRORS", "79"),
        ("CLOCK_THROTTLE_REASONS", "68"),
        ("ECC_SBE_VOL_TOTAL", "5"),
        ("ECC_DBE_VOL_TOTAL", "0"),
        ("FB_FREE", "3"),
        ("FB_USED", "4"),
    ] {
        let line = format!("\nDCGM_FI_DEV_{name}{labels} {value}\n");
        assert!(page.contains(&line), "{line} is not in {page}");
    }
    assert!(!page.contains("MEM_CLOCK"), "unsupported fields are absent");
    assert_eq!(crate::dcgm::parse(page.as_bytes()).unwrap().len(), 15);
}

#[test]
fn memory_of_a_split_gpu_is_that_of_its_parts() {
    let page = page(&[gpu(0), split()]);
    let used: Vec<_> = page.lines().filter(|l| l.starts_with("DCGM_FI_DEV_FB_USED")).collect();
    assert_eq!(used.len(), 3);
    assert!(used[2].contains("UUID=\"GPU-1\"") && used[2].ends_with(" 2"), "{}", used[2]);
    assert!(used[2].contains("GPU_I_PROFILE=\"1g.10gb\",GPU_I_ID=\"2\",Hostname"), "{}", used[2]);
    assert_eq!(page.lines().filter(|l| l.starts_with("DCGM_FI_DEV_GPU_UTIL")).count(), 2);
}

#[test]
fn a_process_has_the_uuids_of_all_its_gpus_and_parts() {
    let by_pid = gpus_by_pid(&[gpu(0), split()]);
    let of = |pid| by_pid.get(&pid).map(|uuids| &**uuids);
    assert_eq!(of(10), Some("GPU-0"));
    assert_eq!(of(11), Some("GPU-0"));
    assert_eq!((of(12), of(13)), (Some("MIG-1"), Some("MIG-2")));
    let both = [gpu(0), gpu(1)];
    assert_eq!(gpus_by_pid(&both).get(&10).map(|uuids| &**uuids), Some("GPU-0,GPU-1"));
}

#[test]
fn answers_of_a_driver_that_went_silent_are_exported_only_for_a_while() {
    let nvml = Nvml { library: "x".into(), known: Mutex::default() };
    let now = Instant::now();
    assert_eq!(nvml.throttled(now), None);
    nvml.store(&[gpu(0)], "575");
    nvml.store_clocks(&[("GPU-0", Some(4)), ("GPU-1", None)]);
    let (families, gpus, state) = nvml.view(now + Duration::from_secs(10));
    assert!(!families.is_empty() && gpus.contains_key(&10));
    assert_eq!((state.verdict, state.age.is_some()), (Verdict::Answers, true));
    let shares = nvml.throttled(now + Duration::from_secs(4)).unwrap();
    assert_eq!(shares.len(), 2);
    assert!(shares["GPU-0"] > 0.99 && shares["GPU-1"] == 0.0, "{shares:?}");
    assert_eq!(nvml.throttled(now + Duration::from_secs(10)), None);
    let (families, gpus, state) = nvml.view(now + Duration::from_secs(20));
    assert!(families.is_empty() && gpus.is_empty());
    assert_eq!((state.verdict, state.age), (Verdict::Silent, None));
}

#[test]
fn a_host_without_a_driver_is_reported() {
    let nvml = Nvml { library: "libno-such.so".into(), known: Mutex::default() };
    let nvml = Arc::new(nvml);
    let error = poll(&Arc::downgrade(&nvml), &nvml.library).unwrap_err();
    assert!(matches!(error, OpenError::Absent { .. }), "{error}");
    assert!(error.to_string().contains("libno-such.so"), "{error}");
}
