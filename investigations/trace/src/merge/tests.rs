use super::*;
use crate::trace::Trace;

/// A file system can be mounted.
mod as_root {
    use std::process::Command;

    use super::*;

    const TEST: &str =
        "merge::tests::as_root::without_space_left_a_merge_names_the_output_and_leaves_nothing";
    /// A small file system, for the program below.
    const FOLDER: &str = "GPUCAUSE_TEST_FOLDER";

    #[test]
    fn without_space_left_a_merge_names_the_output_and_leaves_nothing() {
        if let Some(folder) = std::env::var_os(FOLDER) {
            return merge_without_space(Path::new(&folder));
        }
        let folder = tempfile::tempdir().unwrap();
        let script = "mount -t tmpfs -o size=500k none \"$0\" && exec \"$1\" --exact \"$2\"";
        let own = Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(folder.path())
            .arg(std::env::current_exe().unwrap())
            .arg(TEST)
            .env(FOLDER, folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&own.stdout);
        assert!(own.status.success() && text.contains("1 passed"), "{own:?}");
    }

    fn merge_without_space(folder: &Path) {
        let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cases");
        let inputs = ["cpu-contention.db", "lock.db", "dataloader.db"].map(|name| {
            let path = cases.join(name);
            let recording: Box<dyn Recording> = Box::new(Trace::open(&path).unwrap());
            Input::of(path, recording)
        });
        let output = folder.join("m.db");
        let error = merge(&inputs, &output, false, &mut |_| {}).unwrap_err().to_string();
        let output = output.display();
        let expected = "no space left - free some space, or write to another file system";
        assert_eq!(error, format!("cannot write {output}: {expected}"));
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
    }
}
