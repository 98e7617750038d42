//! Two network namespaces with a cable between them, on which one side can be made to lose all it sends.

use std::process::Command;

use anyhow::{Result, ensure};

/// Addresses of the two sides.
pub(crate) const NEAR: &str = "10.213.0.1";
pub(crate) const FAR: &str = "10.213.0.2";

pub(crate) struct Cable {
    near: String,
    far: String,
}

fn ip(arguments: &str) -> Result<()> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments}: {message}");
    Ok(())
}

impl Cable {
    pub(crate) fn lay() -> Result<Self> {
        let pid = std::process::id();
        let cable = Self { near: format!("gcn{pid}"), far: format!("gcf{pid}") };
        let Self { near, far } = &cable;
        ip(&format!("netns add {near}"))?;
        ip(&format!("netns add {far}"))?;
        ip(&format!("-n {near} link add cable type veth peer name cable netns {far}"))?;
        for (namespace, address) in [(near, NEAR), (far, FAR)] {
            ip(&format!("-n {namespace} addr add {address}/24 dev cable"))?;
            ip(&format!("-n {namespace} link set cable up"))?;
        }
        Ok(cable)
    }

    /// Addresses all that the near side sends from now on to a card that is not there.
    pub(crate) fn disconnect(&self) -> Result<()> {
        let wrong = "02:00:00:00:00:99";
        ip(&format!("-n {} neigh replace {FAR} lladdr {wrong} nud permanent dev cable", self.near))
    }

    /// Returns the command to be run on the near side.
    pub(crate) fn near(&self, command: &Command) -> Command {
        within(&self.near, command)
    }

    /// Returns the command to be run on the far side.
    pub(crate) fn far(&self, command: &Command) -> Command {
        within(&self.far, command)
    }
}

fn within(namespace: &str, command: &Command) -> Command {
    let mut inside = Command::new("nsenter");
    inside.arg(format!("--net=/run/netns/{namespace}"));
    inside.arg(command.get_program()).args(command.get_args());
    inside
}

impl Drop for Cable {
    fn drop(&mut self) {
        for namespace in [&self.near, &self.far] {
            // One that was not made cannot be deleted.
            let _ = ip(&format!("netns del {namespace}"));
        }
    }
}
