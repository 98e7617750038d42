//! The op table of the call programs: written before loading, and again when the launch ops change. Running programs see
//! each flag either old or new; everything else stays the same.

use gpucause_abi::op::{Abi, LaunchOps, OpId};
use gpucause_abi::record::{MAX_OPS, OpInfo};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, Object, OpenObject};
use zerocopy::IntoBytes as _;

use crate::load_error::LoadError;

/// Suffix of the section's map name.
const SECTION: &str = ".data.ops";

/// The table of the loaded programs.
#[derive(Debug)]
pub(crate) struct OpTable(MapHandle);

impl OpTable {
    pub(crate) fn of(programs: &Object) -> Result<Self, LoadError> {
        let mut maps = programs.maps();
        maps.find(|map| map.name().to_string_lossy().ends_with(SECTION))
            .and_then(|map| MapHandle::try_from(&map).ok())
            .map(Self)
            .ok_or(LoadError::Incomplete("op_info"))
    }

    /// Sets the ops that count as launches.
    pub(crate) fn set_launch_ops(&self, ops: &LaunchOps) -> Result<(), libbpf_rs::Error> {
        self.0.update(&0u32.to_ne_bytes(), &bytes(ops), MapFlags::ANY)
    }
}

/// Fills the table before loading.
pub(crate) fn write(open: &mut OpenObject, ops: &LaunchOps) -> Result<(), LoadError> {
    let mut maps = open.maps_mut();
    let mut map = maps
        .find(|map| map.name().to_string_lossy().ends_with(SECTION))
        .ok_or(LoadError::Incomplete("op_info"))?;
    let data = map.initial_value_mut().ok_or(LoadError::Incomplete("the value of op_info"))?;
    let table = bytes(ops);
    if data.len() != table.len() {
        return Err(LoadError::Incomplete("op_info"));
    }
    data.copy_from_slice(&table);
    Ok(())
}

fn bytes(launches: &LaunchOps) -> Vec<u8> {
    let mut table = Vec::with_capacity(MAX_OPS * size_of::<OpInfo>());
    for id in OpId::all() {
        let Some(op) = id.op() else { continue };
        let info = OpInfo { is_launch: u8::from(launches.contains(id)), ..op.info(Abi::HOST) };
        table.extend(info.as_bytes());
    }
    table.resize(MAX_OPS * size_of::<OpInfo>(), 0);
    table
}
