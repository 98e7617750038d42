//! TCP segments that were sent again, against what the sockets' owners read from the kernel.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use gpucause_probes::Options;

use crate::netns::{Cable, FAR, NEAR};
use crate::observe::Observed;
use crate::workload::{StandIns, Workload, number};

const PROGRAMS: [&str; 3] = ["tcp_state", "tcp_receive", "tcp_retransmit"];

fn ready(observed: &Observed, stand_ins: &StandIns, command: Command) -> Result<Workload> {
    let workload = Workload::start(command)?;
    observed.wait_for_runtime(stand_ins)?;
    Ok(workload)
}

/// A process on the far side that has connected and sends a byte on request.
fn peer(cable: &Cable, port: u16) -> Result<Child> {
    let mut shell = Command::new("bash");
    let script = format!("exec 3<>/dev/tcp/{NEAR}/{port}; echo connected; read; echo x >&3; read");
    shell.args(["-c", &script]);
    let mut child = cable.far(&shell).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
    ensure!(line.trim() == "connected", "the far side does not connect");
    Ok(child)
}

#[test]
fn segments_sent_again_are_counted_of_sockets_connected_and_accepted() -> Result<()> {
    let stand_ins = StandIns::lay_out()?;
    let observed = Observed::start(Options::default())?;
    observed.expect_programs(&PROGRAMS)?;
    let cable = Cable::lay()?;
    let accepts = format!("host --accept {NEAR}:4711 --retransmits 3 --wait --hold");
    let mut server = ready(&observed, &stand_ins, cable.near(&stand_ins.command(&accepts)))?;
    let mut peer = peer(&cable, 4711)?;
    cable.disconnect()?;
    server.go()?;
    peer.stdin.as_mut().context("no input")?.write_all(b"now\n")?;
    let connects = format!("host --connect {FAR}:4712 --retransmits 1 --wait --hold");
    let mut client = ready(&observed, &stand_ins, cable.near(&stand_ins.command(&connects)))?;
    let untracked = format!("{connects} --no-call");
    let mut other = ready(&observed, &stand_ins, cable.near(&stand_ins.command(&untracked)))?;
    client.go()?;
    other.go()?;
    let results = [server.result()?, client.result()?, other.result()?];
    peer.kill()?;
    peer.wait()?;
    let [of_server, of_client, of_other] = results.map(|truth| number(&truth, "/retransmits"));
    ensure!(of_server >= 3 && of_client >= 1 && of_other >= 1, "nothing was lost");
    assert_eq!(observed.process(server.pid())?.measures.tcp_retransmits, of_server);
    assert_eq!(observed.process(client.pid())?.measures.tcp_retransmits, of_client);
    assert_eq!(observed.images(other.pid())?.len(), 0);
    Ok(())
}
