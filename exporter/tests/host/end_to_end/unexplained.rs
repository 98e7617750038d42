//! Blocked time without a cause is said with its seconds and the system call that has most of it.

use super::chains::chain_of;
use super::waiter::{check_seconds, observed, started};
use gpucause_fixture::poll::until;

#[test]
#[ignore = "takes a while: make test-waits has it"]
fn time_in_system_calls_without_a_reason_is_unexplained_and_named_by_the_call() {
    let (exporter, _keeper) = observed();
    let calls = ["membarrier", "msgsnd", "mq_timedsend"];
    let mut waiters = started(&exporter, "unexplained.py", &calls);
    for waiter in &waiters {
        let part = format!("of it in {}, ended by the kernel", waiter.kind);
        until(&part, || {
            let chain = chain_of(&exporter, &waiter.pid, "unexplained")?;
            chain["sentence"].as_str()?.contains(&part).then_some(())
        });
    }
    check_seconds(&exporter, &mut waiters, &["unexplained"; 3]);
}
