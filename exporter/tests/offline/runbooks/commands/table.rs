//! How each command line of the documents is tested, by its beginning without `sudo`; the longest beginning that fits holds.

use How::{By, Not, Run};

/// How a command line is tested.
#[derive(Debug)]
pub(super) enum How {
    /// It is run on trace files, a replayed exporter and the configuration of the package.
    Run,
    /// By something else: a file of this repository, and what of it.
    By(&'static str, &'static str),
    /// No test runs it, for this reason.
    Not(&'static str),
}

/// Every command line.
pub(super) const COMMANDS: &[(How, &[&str])] = &[
    (
        Run,
        &[
            "gpucause explain",
            "gpucause query --db",
            "gpucause merge",
            "gpucause export --db",
            "gpucause exporter --config.check",
            "gpucause exporter --help",
            "gpucause demo --list",
            "gpucause completions",
            "gpucause man",
            "gpucause --version",
            "cat /run/gpucause/9400.token",
            "curl -s",
            "curl -si",
            "curl -sS",
            "cd /etc/prometheus",
            "(sed",
            "grep -A2",
            "pgrep -a",
            "ps",
            "taskset",
            "uname -r",
        ],
    ),
    (
        By(
            "exporter/tests/offline/command/reports.rs",
            "fn a_followed_chain_is_printed_once_until_ctrl_c",
        ),
        &["gpucause explain --follow"],
    ),
    (By("alerts/fleet-test/run.py", "def explain(self, round_):"), &["gpucause explain --job"]),
    (
        By("alerts/fleet-test/engines.py", "class Victoria"),
        &["victoria-metrics", "vmagent", "vmalert"],
    ),
    (By(".ci/alerts", "check_routes() {"), &["amtool config routes test"]),
    (
        By("exporter/tests/host/access/explain.rs", "fn a_node_is_asked_over_tls_with_a_password_"),
        &["gpucause explain --url https:"],
    ),
    (
        By("exporter/tests/host/access/fleet.rs", "fn nodes_of_a_list_and_of_a_file_are_explained"),
        &["gpucause explain --nodes", "gpucause explain --nodes-file"],
    ),
    (
        By("exporter/tests/host/access/fleet.rs", "fn nodes_are_asked_in_sql_"),
        &["gpucause query --nodes"],
    ),
    (
        By("exporter/tests/host/access/flights.rs", "fn records_of_all_nodes_are_one_file_"),
        &["gpucause flight", "gpucause flight --nodes"],
    ),
    (By("alerts/fleet-test/flight.py", "def record(self):"), &["gpucause flight --job"]),
    (By(".ci/fleet/engines.py", "def exported("), &["gpucause export --format parquet"]),
    (
        By("exporter/tests/host/access/fleet.rs", "fn chains_of_nodes_are_exported_"),
        &["gpucause export --nodes"],
    ),
    (
        By("exporter/tests/host/end_to_end/check.rs", "fn a_host_that_meets_all_requirements_"),
        &["gpucause check"],
    ),
    (
        By(
            "exporter/tests/host/end_to_end/check.rs",
            "fn a_taken_port_is_a_failure_that_names_who_",
        ),
        &["gpucause check --web.listen-address"],
    ),
    (
        By("exporter/tests/host/end_to_end/configuration.rs", "fn the_check_of_the_host_tells_"),
        &["gpucause check --config"],
    ),
    (
        By("exporter/tests/host/end_to_end/access.rs", "fn check_tells_what_a_web_configuration_"),
        &["gpucause check --web.config.file"],
    ),
    (
        By(
            "exporter/tests/offline/command/check.rs",
            "fn a_prometheus_is_asked_for_this_host_and_the_",
        ),
        &["gpucause check --prometheus"],
    ),
    (
        By(
            "exporter/tests/host/end_to_end/top.rs",
            "fn top_prints_the_launch_rate_of_a_process_once_",
        ),
        &["gpucause top"],
    ),
    (
        By("exporter/tests/host/end_to_end/recording.rs", "fn every_call_is_in_the_file_once_"),
        &["gpucause record"],
    ),
    (
        By("exporter/tests/offline/live_page.rs", "fn a_trace_file_is_shown_as_a_page"),
        &["gpucause view"],
    ),
    (
        By("exporter/tests/offline/replay.rs", "fn a_recording_is_served_as_the_node_served_it"),
        &["gpucause replay"],
    ),
    (
        By("exporter/tests/host/end_to_end/lifecycle.rs", "fn a_signal_ends_the_exporter_"),
        &["gpucause exporter", "target/release/gpucause exporter"],
    ),
    (
        By("exporter/tests/host/end_to_end/dcgm.rs", "fn a_failing_upstream_"),
        &["gpucause exporter --dcgm.url"],
    ),
    (
        By(
            "exporter/tests/host/end_to_end/flights.rs",
            "fn a_severe_chain_and_a_signal_each_make_a_",
        ),
        &["gpucause exporter --flight-recorder.dir"],
    ),
    (
        By("exporter/tests/offline/command.rs", "fn mcp_over_http_makes_a_token_"),
        &["gpucause mcp --http"],
    ),
    (
        By("investigations/tests/recordings/mcp.rs", "fn the_public_client_calls_every_tool_over_"),
        &["gpucause mcp"],
    ),
    (
        By("exporter/tests/host/end_to_end/top.rs", "fn the_demo_shows_the_same_view_"),
        &["gpucause demo"],
    ),
    (
        By(
            "exporter/tests/host/end_to_end/access.rs",
            "fn curl_gets_in_with_certificate_and_password_",
        ),
        &["curl --cacert"],
    ),
    (By("systemd/test/checks", "the package is installed"), &["apt install"]),
    (By("systemd/test/checks", "systemctl restart $unit"), &["systemctl restart gpucause"]),
    (By("systemd/test/checks", "systemctl reload $unit"), &["systemctl reload gpucause"]),
    (By("systemd/test/checks", "journalctl -u $unit"), &["journalctl -u gpucause"]),
    (By("systemd/test/checks", "systemctl enable"), &["systemctl enable --now gpucause"]),
    (By("systemd/test/checks", "systemctl status $unit"), &["systemctl status gpucause"]),
    (By(".ci/run", "make test"), &["make test", "cargo test"]),
    (By(".ci/test", "dashboards/check.py"), &["python3 dashboards/source/build.py"]),
    (
        Not("runs tests for minutes or hours, which make test does not repeat in itself"),
        &[
            "make bench",
            "make cases",
            "make healthy",
            "make healthy-alerts",
            "make scenarios",
            "make test-fleet",
            "make test-kernels",
            "make test-pytorch",
            "make test-quick",
            "make test-unit",
        ],
    ),
    (
        Not("builds a release, which takes minutes"),
        &["make build", "make dashboards-picture", "make deb", "make demo-stack", "make run"],
    ),
    (Not("needs a network and builds for minutes"), &["make advisories", "make deny"]),
    (
        Not("needs a registry of images, and Docker or Podman"),
        &["docker pause", "docker run", "podman run"],
    ),
    (Not("acts on a unit or a service of the reader's host"), &["systemctl", "journalctl -k"]),
    (
        Not("reads the log of the kernel, where only a GPU's driver writes this"),
        &["dmesg -T | grep -i xid"],
    ),
    (Not("needs an NVIDIA GPU and its driver"), &["nvidia-smi"]),
    (Not("needs a network card that counts, which virtual machines lack"), &["ethtool -S"]),
    (Not("needs the scheduler of a cluster"), &["kubectl", "scancel"]),
    (Not("ends a process of the reader's host"), &["kill -INT"]),
    (Not("needs another host with a login"), &["ssh -L"]),
    (Not("gives a file of root to the reader"), &["chown"]),
    (Not("asks the Alertmanager of the reader's site"), &["amtool silence add"]),
    (Not("shows sockets of the host by a program that tests do not install"), &["ss -ltnp"]),
    (
        Not("stops a process for its stacks, by a program that tests do not install"),
        &["gdb -p", "py-spy dump", "py-spy record"],
    ),
    (
        Not("sets what CUDA, OpenMP or PyTorch read, which stand-ins do not"),
        &["export CUDA_", "export OMP_", "export PYTORCH_"],
    ),
    (Not("writes a process to files, by a program that tests do not install"), &["criu dump"]),
    (Not("needs a kernel with groups by session"), &["echo 19 > /proc/PID/autogroup"]),
];
