//! A process that has the library and does not use it.

use anyhow::Result;
use serde_json::json;

use super::result;
use crate::cli::Common;
use crate::libraries::Libraries;
use crate::session;

pub(crate) fn run(common: &Common) -> Result<()> {
    let libraries = Libraries::open(common)?;
    session::ready(common, &[crate::process::thread_id()], &json!({}))?;
    session::until_closed()?;
    session::finish(common, &result("idle", &libraries))
}
