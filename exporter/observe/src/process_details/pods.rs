//! Names of Kubernetes pods, from the folders that the kubelet keeps their logs in. Those are on every node, and unlike the
//! kubelet's own interfaces need neither a token nor a certificate.

use std::fs;
use std::path::Path;

/// Where the kubelet makes them, unless `podLogsDir` of its configuration says otherwise.
pub(super) const LOGS: &str = "/var/log/pods";

/// Namespace and name of a pod.
pub(super) fn name_of(uid: &str, logs: &Path) -> Option<(String, String)> {
    fs::read_dir(logs).ok()?.map_while(Result::ok).find_map(|entry| {
        let folder = entry.file_name();
        let (names, its_uid) = folder.to_str()?.rsplit_once('_')?;
        // Neither name can have an underscore.
        let (namespace, name) = names.split_once('_').filter(|_| its_uid == uid)?;
        Some((namespace.to_owned(), name.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_named_by_its_log_folder() {
        let logs = tempfile::tempdir().unwrap();
        let uid = "1b4c7d8e-09af-4c1d-8e2f-a1b2c3d4e5f6";
        for folder in [
            "kube-system_proxy-x_5d9f2b7c1e3a4f608192a3b4c5d6e7f8",
            &format!("ml_train-0_{uid}"),
            "_",
            "x",
        ] {
            fs::create_dir(logs.path().join(folder)).unwrap();
        }
        let name = |uid| name_of(uid, logs.path());
        assert_eq!(name(uid), Some(("ml".into(), "train-0".into())));
        assert_eq!(
            name("5d9f2b7c1e3a4f608192a3b4c5d6e7f8"),
            Some(("kube-system".into(), "proxy-x".into()))
        );
        assert_eq!(name("09af"), None);
        assert_eq!(name_of(uid, &logs.path().join("none")), None);
    }
}
