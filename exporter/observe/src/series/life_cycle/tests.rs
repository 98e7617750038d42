use super::*;
use gpucause_abi::Tgid;
use gpucause_abi::record::COMM_LEN;
use gpucause_abi::snapshot::Comm;

#[test]
fn page_faults_never_decrease_nor_vanish_while_a_process_is_exported() {
    let mut last = HashMap::new();
    let mut sample = |id: u32, faults: Option<[u64; FAULTS]>| {
        let mut process = ProcessSnapshot::new(ProcId(id), Tgid(1), Comm([b'p'; COMM_LEN]));
        process.host.page_faults = faults;
        let mut processes = [process];
        raise_faults(&mut last, &mut processes);
        let [process] = processes;
        process.host.page_faults
    };
    assert_eq!(sample(1, Some([10, 1])), Some([10, 1]));
    assert_eq!(sample(1, Some([8, 2])), Some([10, 2]));
    assert_eq!(sample(1, None), Some([10, 2]));
    assert_eq!(sample(2, None), None);
}
