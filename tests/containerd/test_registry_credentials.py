"""Images behind a login on a real containerd: logins from pull secrets, plugins and the node's configuration.

And who may use what was pulled with them.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.containerd.conftest import CHOSEN, NewNode
from tests.containerd.harness import Node, container, pod, wait_until
from tests.containerd.registry import Registry, running_registry
from tests.containerd.scenes import until_waiting
from tests.containerd.test_pod_objects import Cluster
from trio_kubelet.standalone.node import Provisions

USER, PASSWORD = "puller", "hidden-7f3a"
LOGIN = {"username": USER, "password": PASSWORD}
V1 = "credentialprovider.kubelet.k8s.io/v1"


def docker_config(registry: Registry, password: str = PASSWORD) -> dict[str, Any]:
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    return {"auths": {registry.address: {"auth": auth}}}


def add_pull_secret(cluster: Cluster, name: str, config: dict[str, Any]) -> None:
    data = {".dockerconfigjson": base64.b64encode(json.dumps(config).encode()).decode()}
    tree = {"metadata": {"name": name}, "type": "kubernetes.io/dockerconfigjson", "data": data}
    cluster.store.create("secrets", "default", tree)


def install_plugin(directory: Path, registry: Registry, **fields: Any) -> tuple[str, str]:
    """Flags for a plugin that knows the login; what it is asked goes to `asked` in its directory."""
    answer = {
        "kind": "CredentialProviderResponse",
        "apiVersion": V1,
        "cacheKeyType": "Registry",
        "auth": {registry.address: LOGIN},
    }
    directory.mkdir()
    (directory / "ask").write_text(
        f"#!{sys.executable} -IS\nimport sys\n"
        f"open({str(directory / 'asked')!r}, 'a').write(sys.stdin.read())\n"
        f"print({json.dumps(answer)!r})\n"
    )
    (directory / "ask").chmod(0o755)
    provider = {
        "name": "ask",
        "matchImages": [registry.address],
        "defaultCacheDuration": "1h",
        "apiVersion": V1,
    }
    config = {"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig"}
    file = directory / "config.json"
    file.write_text(json.dumps(config | {"providers": [provider | fields]}))
    return f"--image-credential-provider-config={file}", f"--image-credential-provider-bin-dir={directory}"


def give_login(root: Path, location: str) -> None:
    """The node's own configuration has the login of user `node`."""
    root.mkdir(parents=True, exist_ok=True)
    own = {"auths": {location: {"username": "node", "password": PASSWORD}}}
    (root / "config.json").write_text(json.dumps(own))


def asked(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "asked").read_text().splitlines()]


def private(registry: Registry) -> str:
    registry.private["busybox"] = f"{USER}:{PASSWORD}"
    return registry.reference("busybox:1")


async def until_denied(node: Node, name: str, image: str) -> None:
    """The pod waits, with the kubelet's words. `ErrImagePull` itself is shown for milliseconds only."""
    found = await until_waiting(node, name, "ImagePullBackOff")
    start = f'Back-off pulling image "{image}": ErrImagePull: failed to pull and unpack image "{image}": '
    assert found["message"].startswith(start)
    assert "401" in found["message"] or "authorization failed" in found["message"]


async def test_pull_secrets_and_who_may_use_what_they_pulled(
    new_node: NewNode, provisions: Callable[[str], Provisions], tmp_path: Path
) -> None:
    cluster = Cluster()
    with running_registry(provisions(CHOSEN).images_archive) as registry:
        image = private(registry)
        async with new_node() as node, cluster.serving(node, tmp_path) as config:
            agent = await node.start_agent(f"--kubeconfig={config}", "-v=10")
            add_pull_secret(cluster, "right", docker_config(registry))
            add_pull_secret(cluster, "wrong", docker_config(registry, "other"))

            def run(name: str, *secrets: str) -> None:
                refs = [{"name": secret} for secret in secrets]
                main = container("main", image=image, imagePullPolicy="IfNotPresent")
                cluster.pod(node, name, main, imagePullSecrets=refs)

            run("none")
            run("bad", "wrong")
            run("missing", "nothing")
            for name in ("none", "bad", "missing"):
                await until_denied(node, name, image)
            told = (
                "Unable to retrieve some image pull secrets (nothing); "
                "attempting to pull the image may not succeed."
            )
            reason = "FailedToRetrieveImagePullSecret"
            await wait_until(lambda: told in cluster.events(reason), 20, "the missing secret is told")
            await wait_until(
                lambda: "Error: ErrImagePull" in cluster.events("Failed"), 20, "an error is told"
            )
            # A wrong login is no harm if a right one follows.
            run("good", "wrong", "right")
            await node.wait_running("good")
            # The image is there now, but only for those who have a login.
            run("again")
            await until_denied(node, "again", image)
            pulls = registry.served.count("/v2/busybox/manifests/1")
            assert pulls
            run("other", "right")
            await node.wait_running("other")
            told = f'Container image "{image}" already present on machine and can be accessed by the pod'
            await wait_until(lambda: told in cluster.events("Pulled"), 20, "its access is told")
            # Those who were denied go on asking, and are refused.
            assert registry.served.count("/v2/busybox/manifests/1") == pulls
            records = list((Path(node.layout.agent_root) / "image_manager" / "pulled").iterdir())
            (record,) = [json.loads(path.read_text()) for path in records]
            (secret,) = record["credentialMapping"][image.removesuffix(":1")]["kubernetesSecrets"]
            assert (secret["namespace"], secret["name"]) == ("default", "right")
            # After a restart the records still count.
            await node.stop_agent()
            await node.start_agent(f"--kubeconfig={config}", "-v=10")
            run("later")
            await until_denied(node, "later", image)
            for page in (agent.log_text(), await node.metrics(), json.dumps(await node.pods())):
                assert PASSWORD not in page


async def test_plugins_and_the_nodes_configuration_without_an_api_server(
    new_node: NewNode, provisions: Callable[[str], Provisions], tmp_path: Path
) -> None:
    with running_registry(provisions(CHOSEN).images_archive) as registry:
        image = private(registry)
        registry.private["web"] = f"node:{PASSWORD}"
        flags = install_plugin(tmp_path / "bin", registry)
        async with new_node() as node:
            give_login(Path(node.layout.agent_root), f"{registry.address}/web")
            agent = await node.start_agent(*flags, "-v=10")
            for name, wanted in (("plugin", image), ("node", registry.reference("web:1"))):
                main = container("main", image=wanted, imagePullPolicy="Always")
                node.write(pod(name, main))
                await node.wait_running(name)
            request = {"kind": "CredentialProviderRequest", "apiVersion": V1}
            assert asked(tmp_path / "bin") == [request | {"image": image.removesuffix(":1")}]
            metrics = await node.metrics()
            assert 'kubelet_credential_provider_plugin_duration_count{plugin_name="ask"} 1' in metrics
            assert 'kubelet_credential_provider_config_info{hash="sha256:' in metrics
            assert PASSWORD not in agent.log_text() + metrics


async def test_a_plugin_gets_the_pods_token(
    new_node: NewNode, provisions: Callable[[str], Provisions], tmp_path: Path
) -> None:
    cluster = Cluster()
    attributes = {
        "serviceAccountTokenAudience": "registry",
        "requireServiceAccount": True,
        "cacheType": "ServiceAccount",
    }
    with running_registry(provisions(CHOSEN).images_archive) as registry:
        image = private(registry)
        flags = install_plugin(tmp_path / "bin", registry, tokenAttributes=attributes)
        async with new_node() as node, cluster.serving(node, tmp_path) as config:
            agent = await node.start_agent(f"--kubeconfig={config}", "-v=10", *flags)
            main = container("main", image=image, imagePullPolicy="IfNotPresent")
            cluster.pod(node, "one", main)
            await node.wait_running("one")
            (request,) = asked(tmp_path / "bin")
            assert request["serviceAccountToken"] in cluster.server.tokens
            # The account may use what was pulled for it; another one may not.
            cluster.pod(node, "two", main)
            await node.wait_running("two")
            cluster.store.create("serviceaccounts", "default", {"metadata": {"name": "other"}})
            registry.private["busybox"] = "changed:changed"
            cluster.pod(node, "three", main, serviceAccountName="other")
            await until_denied(node, "three", image)
            assert len(asked(tmp_path / "bin")) == 2
            assert request["serviceAccountToken"] not in agent.log_text()


async def test_a_configuration_that_cannot_be_used_stops_the_agent(new_node: NewNode, tmp_path: Path) -> None:
    async with new_node() as node:
        flag = f"--image-credential-provider-bin-dir={tmp_path}"
        agent = await node.start_agent(flag, wait=False)
        await wait_until(lambda: agent.process.poll() is not None, 20, "the agent ends")
        text = "failed to register CRI auth plugins: credential provider config path is empty"
        assert text in agent.log_text()
        await node.kill_agent()
