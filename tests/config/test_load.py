"""Defaults, file, drop-ins and flags come together as with the kubelet."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.command_line import settings
from trio_kubelet.config.decode import to_configz
from trio_kubelet.config.load import DEFAULT_EVICTION_HARD, ConfigurationError, merge_patch
from trio_kubelet.config.types import KubeletConfiguration, VModuleItem, legacy_configuration

HEAD = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

# What kubeadm 1.36 writes: zero for everything it leaves to the kubelet.
KUBEADM = """\
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
  webhook:
    cacheTTL: 0s
    enabled: true
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
authorization:
  mode: Webhook
  webhook:
    cacheAuthorizedTTL: 0s
    cacheUnauthorizedTTL: 0s
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///var/run/containerd/containerd.sock
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
kind: KubeletConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
"""
KUBEADM_ARGS = (
    "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf "
    "--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock --node-ip=10.0.0.5 "
    "--register-with-taints=node-role.kubernetes.io/control-plane=:NoSchedule"
)


def refusal(*args: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        settings(*args)
    return str(caught.value)


@pytest.fixture
def config_file(tmp_path: Path) -> Any:
    def write(body: str) -> str:
        path = tmp_path / "config.yaml"
        path.write_text(HEAD + textwrap.dedent(body))
        return f"--config={path}"

    return write


def test_nothing_given_is_the_legacy_configuration() -> None:
    found = settings()
    assert found.config == legacy_configuration()
    assert found.config.read_only_port == 10255
    assert found.config.authentication.anonymous.enabled
    assert found.config.eviction_hard == {}
    assert found.warnings == ()
    assert found.ineffective == ()


def test_an_empty_file_object_is_the_defaults_of_a_file(config_file: Any) -> None:
    config = settings(config_file("")).config
    assert config.read_only_port == 0
    assert not config.authentication.anonymous.enabled
    assert config.eviction_hard == DEFAULT_EVICTION_HARD


def test_json_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    body = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "maxPods": 7}
    path.write_text(json.dumps(body))
    assert settings(f"--config={path}").config.max_pods == 7


def test_flags_win_over_the_file(config_file: Any) -> None:
    file = config_file(
        """
        maxPods: 5
        kubeReserved: {cpu: "1", pid: "5"}
        clusterDNS: [1.1.1.1]
        featureGates: {EventedPLEG: true, CRIListStreaming: true}
        logging: {verbosity: 2, vmodule: [{filePattern: a, verbosity: 1}]}
        """
    )
    found = settings(
        file,
        "--max-pods=0",
        "--kube-reserved=cpu=2",
        "--cluster-dns=2.2.2.2",
        "--feature-gates=EventedPLEG=false",
        "-v=4",
        "--vmodule=b=3",
    )
    assert found.config.max_pods == 0
    assert found.config.kube_reserved == {"cpu": "2"}
    assert found.config.cluster_dns == ["2.2.2.2"]
    assert found.config.feature_gates == {"EventedPLEG": False, "CRIListStreaming": True}
    assert not found.gates.enabled("EventedPLEG")
    assert found.gates.enabled("CRIListStreaming")
    assert found.config.logging.verbosity == 4
    assert found.config.logging.vmodule == [
        VModuleItem(file_pattern="a", verbosity=1),
        VModuleItem(file_pattern="b", verbosity=3),
    ]


def test_zero_means_not_set_unless_the_field_keeps_zeros(config_file: Any) -> None:
    config = settings(
        config_file("port: 0\nsyncFrequency: 0s\nmaxPods: 0\nhealthzPort: 0\nfailSwapOn: false")
    ).config
    assert (config.port, config.sync_frequency, config.max_pods) == (10250, 60.0, 110)
    assert (config.healthz_port, config.fail_swap_on) == (0, False)


def test_null_means_not_set(config_file: Any) -> None:
    assert (
        settings(config_file("port: null\nhealthzPort: null\nevictionHard: null")).config
        == settings(config_file("")).config
    )


@pytest.mark.parametrize(
    ("body", "attribute", "value"),
    [
        ("evictionHard: {memory.available: 5%}", "eviction_hard", {"memory.available": "5%"}),
        ("evictionHard: {}", "eviction_hard", {}),
        (
            "evictionHard: {memory.available: 5%}\nmergeDefaultEvictionSettings: true",
            "eviction_hard",
            DEFAULT_EVICTION_HARD | {"memory.available": "5%"},
        ),
        ("nodeStatusUpdateFrequency: 20s", "node_status_report_frequency", 20.0),
        ("nodeStatusUpdateFrequency: 10s", "node_status_report_frequency", 10.0),
        ("nodeStatusUpdateFrequency: 0s", "node_status_report_frequency", 300.0),
        (
            "nodeStatusUpdateFrequency: 20s\nnodeStatusReportFrequency: 1m",
            "node_status_report_frequency",
            60.0,
        ),
        ("maxParallelImagePulls: 3", "serialize_image_pulls", False),
        ("maxParallelImagePulls: 1", "serialize_image_pulls", True),
        ("podPidsLimit: -5", "pod_pids_limit", -1),
        ("enforceNodeAllocatable: []", "enforce_node_allocatable", []),
        ("logging: {flushFrequency: 3000000000}", "logging.flush_frequency", 3.0),
        ("memoryThrottlingFactor: 0.5", "memory_throttling_factor", 0.5),
        ("memoryThrottlingFactor: 1", "memory_throttling_factor", 1.0),
        ("maxPods: 1e2", "max_pods", 100),
        (
            "featureGates: {KubeletCrashLoopBackOffMax: false}",
            "crash_loop_back_off.max_container_restart_period",
            None,
        ),
        (
            "featureGates: {KubeletEnsureSecretPulledImages: false}",
            "image_pull_credentials_verification_policy",
            "",
        ),
    ],
)
def test_defaults_that_depend(config_file: Any, body: str, attribute: str, value: object) -> None:
    found: Any = settings(config_file(body)).config
    for part in attribute.split("."):
        found = getattr(found, part)
    assert found == value


def test_absolute_paths_are_left_as_they_are_written(config_file: Any) -> None:
    config = settings(config_file("volumePluginDir: /usr/libexec/../exec/")).config
    assert config.volume_plugin_dir == "/usr/libexec/../exec/"
    default = settings(config_file("maxPods: 3")).config.volume_plugin_dir
    assert default == "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"


def test_relative_paths_are_relative_to_the_file(config_file: Any, tmp_path: Path) -> None:
    config = settings(config_file("staticPodPath: manifests\ntlsCertFile: ../c.crt\nresolvConf: ''")).config
    assert config.static_pod_path == str(tmp_path / "manifests")
    assert config.tls_cert_file == str(tmp_path.parent / "c.crt")
    assert config.resolv_conf == ""


def test_unknown_and_duplicate_keys_are_one_warning(config_file: Any) -> None:
    found = settings(config_file("maxPods: 3\nfoo: 1\nmaxPods: 4\nauthentication: {y509: {}}"))
    assert found.config.max_pods == 4
    [(message, values)] = found.warnings
    assert "lenient" in message
    for part in ('unknown field "foo"', 'unknown field "authentication.y509"', 'key "maxPods" already set'):
        assert part in str(values["err"])


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("maxPods: '110'", "maxPods: expected an integer, got the string '110'"),
        ("maxPods: 1.5", "maxPods: expected an integer, got the number 1.5"),
        ("maxPods: true", "maxPods: expected an integer, got the boolean true"),
        ("maxPods: 3000000000", "maxPods: 3000000000 is not between -2147483648 and 2147483647"),
        ("failSwapOn: 'no'", "failSwapOn: expected a boolean, got the string 'no'"),
        ("address: 1.5", "address: expected a string, got the number 1.5"),
        ("clusterDNS: 1.1.1.1", "clusterDNS: expected a list, got the string '1.1.1.1'"),
        ("clusterDNS: [1]", "clusterDNS[0]: expected a string, got the number 1"),
        (r'podLogsDir: "/var/log/\0pods"', "podLogsDir: has a zero byte"),
        (r'clusterDNS: ["10.0.0.1\0"]', "clusterDNS[0]: has a zero byte"),
        ("evictionHard: [a]", "evictionHard: expected an object, got a list"),
        ("authentication: yes", "authentication: expected an object, got the boolean true"),
        ("syncFrequency: 60", 'syncFrequency: expected a duration such as "1m30s", got the number 60'),
        ("syncFrequency: 60x", "syncFrequency: unknown unit 'x' in duration '60x'"),
        ("logging: {vmodule: [{verbosity: -1}]}", "logging.vmodule[0].verbosity: -1 is not between"),
        ("reservedMemory: [{limits: {memory: lots}}]", "reservedMemory[0].limits[memory]: "),
        ("maxPods: [", "line "),
        ("a: b: c", "line 3"),
    ],
)
def test_errors_name_file_field_and_reason(config_file: Any, body: str, problem: str) -> None:
    flag = config_file(body)
    text = refusal(flag)
    assert flag.removeprefix("--config=") in text
    assert problem in text


def test_all_wrong_fields_are_named_at_once(config_file: Any) -> None:
    text = refusal(config_file("maxPods: x\nport: y"))
    assert "maxPods" in text
    assert "port" in text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "the file is empty"),
        ("[]", "expected a KubeletConfiguration object, got a list"),
        ("kind: KubeletConfiguration", "apiVersion is missing, expected kubelet.config.k8s.io/v1beta1"),
        ("apiVersion: kubelet.config.k8s.io/v1beta1", "kind is missing, expected KubeletConfiguration"),
        ("apiVersion: kubelet.config.k8s.io/v1\nkind: KubeletConfiguration", "'kubelet.config.k8s.io/v1'"),
        (f"{HEAD}apiversion: v1", "apiVersion is 'v1', expected kubelet.config.k8s.io/v1beta1"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "c"
    path.write_text(content)
    assert problem in refusal(f"--config={path}")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert f"error: open {tmp_path}/none: no such file or directory" in refusal(f"--config={tmp_path}/none")


def test_drop_ins_merge_in_lexical_order_and_flags_still_win(config_file: Any, tmp_path: Path) -> None:
    directory = tmp_path / "conf.d"
    (directory / "15-sub").mkdir(parents=True)
    for name, body in {
        "10-a.conf": "maxPods: 10\nclusterDNS: [1.1.1.1]\nevictionHard: {pid.available: '10%'}\nport: 1234",
        "15-sub/x.conf": "maxPods: 15",
        "20-b.conf": "maxPods: 20\nclusterDNS: [2.2.2.2]\nport: null\n"
        + "authentication: {x509: {clientCAFile: /b}}",
        "30-c.yaml": "maxPods: 30",
        "12-d.conf": "maxPods: 12\nfeatureGates: {EventedPLEG: true}",
    }.items():
        (directory / name).write_text(HEAD + body)
    file = config_file(
        """
        maxPods: 1
        clusterDNS: [0.0.0.0]
        authentication: {x509: {clientCAFile: /a}, webhook: {enabled: false}}
        """
    )
    config = settings(file, f"--config-dir={directory}", "--cluster-domain=x").config
    assert config.max_pods == 20
    assert config.cluster_dns == ["2.2.2.2"]
    assert config.eviction_hard == DEFAULT_EVICTION_HARD | {"pid.available": "10%"}
    assert config.authentication.x509.client_ca_file == "/b"
    assert not config.authentication.webhook.enabled
    assert config.port == 10250
    assert config.feature_gates == {"EventedPLEG": True}
    assert config.cluster_domain == "x"
    assert settings(file, f"--config-dir={directory}", "--max-pods=7").config.max_pods == 7


def test_drop_ins_without_a_file_start_from_the_legacy_configuration(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text(HEAD + "maxPods: 3")
    config = settings(f"--config-dir={tmp_path}").config
    assert (config.max_pods, config.read_only_port, config.eviction_hard) == (3, 10255, {})


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (HEAD + "maxPods: x", "maxPods: expected an integer"),
        (HEAD + "maxPods: 1\nmaxPods: 2", 'key "maxPods" already set'),
        ("maxPods: 1", "apiVersion is missing"),
    ],
)
def test_a_bad_drop_in_is_named(tmp_path: Path, body: str, problem: str) -> None:
    (tmp_path / "a.conf").write_text(body)
    text = refusal(f"--config-dir={tmp_path}")
    assert f"{tmp_path}/a.conf" in text
    assert problem in text


def test_a_missing_drop_in_directory_is_an_error(tmp_path: Path) -> None:
    assert f"{tmp_path}/none" in refusal(f"--config-dir={tmp_path}/none")


def test_a_configuration_of_kubeadm_works_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(KUBEADM)
    found = settings(f"--config={path}", *KUBEADM_ARGS.split())
    assert found.warnings == ()
    config = found.config
    assert config.cgroup_driver == "systemd"
    assert config.static_pod_path == "/etc/kubernetes/manifests"
    assert config.cluster_dns == ["10.96.0.10"]
    assert config.sync_frequency == KubeletConfiguration().sync_frequency
    assert config.logging == KubeletConfiguration().logging
    assert config.crash_loop_back_off.max_container_restart_period == 300.0
    assert config.register_with_taints[0].effect == "NoSchedule"
    assert found.flags.node_ip == "10.0.0.5"
    # Zeros are no settings, so they cannot be without effect.
    assert not {"shutdownGracePeriod", "cpuManagerReconcilePeriod", "memorySwap"} & set(found.ineffective)
    assert not [name for name in found.ineffective if name.startswith("logging")]


def test_settings_without_effect_are_named(config_file: Any) -> None:
    found = settings(
        config_file("staticPodPath: /x\nhairpinMode: none"),
        "--hostname-override=n",
        "--contention-profiling=true",
        "--feature-gates=GangScheduling=false",
    )
    assert set(found.ineffective) == {
        "hairpinMode",
        "--contention-profiling",
        "featureGates.GangScheduling",
    }


def test_the_flag_of_the_seccomp_default_changes_no_configuration(config_file: Any) -> None:
    assert settings("--seccomp-default").flags.seccomp_default
    assert not settings("--seccomp-default").config.seccomp_default
    assert settings(config_file("seccompDefault: true"), "--seccomp-default=false").config.seccomp_default


def test_null_is_no_duration_unless_there_may_be_none(config_file: Any) -> None:
    refused = refusal(config_file("syncFrequency: null"))
    assert "syncFrequency: expected a duration, got null" in refused
    assert settings(config_file("cpuCFSQuotaPeriod: null")).config.cpu_cfs_quota_period == 0.1


def test_null_in_a_list_or_map_is_the_empty_value(config_file: Any) -> None:
    body = "clusterDNS: [null, 1.1.1.1]\nevictionHard: {}\nreservedMemory: [null]\n"
    config = settings(config_file(body + "featureGates: {EventedPLEG: null}")).config
    assert config.cluster_dns == ["", "1.1.1.1"]
    assert config.feature_gates == {"EventedPLEG": False}
    assert to_configz(config)["reservedMemory"] == [{"numaNode": 0, "limits": None}]


def test_drop_ins_may_write_names_in_any_case(config_file: Any, tmp_path: Path) -> None:
    directory = tmp_path / "conf.d"
    directory.mkdir()
    text = "maxpods: 5\nMaxPods: 6\nsyncFrequency: null\nauthentication: {X509: {clientcafile: /a}}"
    (directory / "a.conf").write_text(HEAD + text)
    found = settings(config_file("maxPods: 3\nsyncFrequency: 3s"), f"--config-dir={directory}")
    assert found.config.max_pods == 5
    assert found.config.sync_frequency == 60
    assert found.config.authentication.x509.client_ca_file == "/a"
    assert not found.warnings
    # In the file of --config they are unknown.
    assert settings(config_file("maxpods: 5")).config.max_pods == 110


@pytest.mark.parametrize(
    ("label", "problem"),
    [
        ("node-role.kubernetes.io/x=", "a kubernetes.io label a node may not give itself"),
        ("a b=c", "'a b' is not a label name"),
        ("a=b c", "'b c' is not a label value"),
    ],
)
def test_labels_a_node_may_not_have(label: str, problem: str) -> None:
    assert problem in refusal(f"--node-labels={label}")


def test_labels_a_node_may_have() -> None:
    labels = (
        "a=b,node.kubernetes.io/x=y,kubernetes.io/hostname=h,foo.kubelet.kubernetes.io/z=1,example.com/e="
    )
    assert len(settings(f"--node-labels={labels}").flags.node_labels) == 5


def test_gates_of_flags_and_file_are_checked(config_file: Any) -> None:
    assert "unrecognized feature gate: Nope" in refusal("--feature-gates=Nope=true")
    assert "unrecognized feature gate: Nope" in refusal(config_file("featureGates: {Nope: true}"))
    found = settings("--feature-gates=SidecarContainers=true")
    assert "SidecarContainers=true (GA)" in str(found.warnings[0][1])
    assert found.ineffective == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


def no_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: no_nulls(entry) for key, entry in value.items() if entry is not None}
    return value


@given(json_values, json_values)
def test_merging_a_patch_twice_changes_nothing_more(base: Any, patch: Any) -> None:
    once = merge_patch(base, patch)
    assert merge_patch(once, patch) == once


@given(json_values)
def test_merging_into_nothing_is_the_patch_without_nulls(patch: Any) -> None:
    assert merge_patch({}, patch) == no_nulls(patch)


@given(
    st.dictionaries(
        st.sampled_from(["maxPods", "port", "logging", "clusterDNS", "evictionHard"]), json_values
    )
)
def test_any_json_in_a_file_is_read_or_refused(body: dict[str, Any]) -> None:
    from trio_kubelet.config.decode import decode_configuration

    config, findings = decode_configuration(body)
    assert findings.errors or isinstance(config.max_pods, int)
