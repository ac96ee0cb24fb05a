"""The test API server's store against what the real one does, as far as nodes rely on it."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

from tests.kube.apiserver import APIServer, User
from tests.kube.certs import CA, key_pem, new_key
from tests.kube.door import SimulatedDoor
from tests.kube.merge import strategic_merge
from tests.kube.store import Tree
from trio_kubelet.api import v1
from trio_kubelet.config.load import merge_patch
from trio_kubelet.kube.client import KubeClient
from trio_kubelet.kube.doors import APIRequest
from trio_kubelet.kube.errors import APIError, APIUnavailable

PODS = "/api/v1/namespaces/d/pods"


def a_pod(name: str = "a", **metadata: object) -> v1.Pod:
    meta = v1.ObjectMeta(name=name, namespace="d", **metadata)  # type: ignore[arg-type]
    return v1.Pod(metadata=meta, spec=v1.PodSpec(node_name="n", containers=[v1.Container(name="c")]))


def client_of(server: APIServer) -> KubeClient:
    return KubeClient(SimulatedDoor(server))


async def refusal(call: object) -> tuple[int, str]:
    with pytest.raises(APIError) as caught:
        await call  # type: ignore[misc]
    return caught.value.code, caught.value.reason


async def test_create_get_update_and_conflicts(autojump_clock: trio.testing.MockClock) -> None:
    client = client_of(APIServer())
    made = await client.create(PODS, a_pod(), v1.Pod)
    assert made.metadata.uid
    assert made.metadata.creation_timestamp == "2025-11-21T04:40:00Z"
    assert made.status.phase == "Pending"
    assert await refusal(client.create(PODS, a_pod(), v1.Pod)) == (409, "AlreadyExists")
    assert await refusal(client.get(f"{PODS}/b", v1.Pod)) == (404, "NotFound")
    made.metadata.labels = {"x": "y"}
    made.status.phase = "Running"
    changed = await client.update(f"{PODS}/a", made, v1.Pod)
    assert (changed.metadata.labels, changed.status.phase) == ({"x": "y"}, "Pending")
    assert int(changed.metadata.resource_version) > int(made.metadata.resource_version)
    assert await refusal(client.update(f"{PODS}/a", made, v1.Pod)) == (409, "Conflict")
    again = await client.update(f"{PODS}/a", changed, v1.Pod)
    assert again.metadata.resource_version == changed.metadata.resource_version


async def test_a_generated_name_that_is_taken_is_generated_again(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = APIServer()
    client = client_of(server)
    numbers = iter([1 << 127, 0, 1 << 127, 1 << 126, 1])  # name, UID; name, another one, UID
    monkeypatch.setattr(server.store._random, "getrandbits", lambda bits: next(numbers))
    names = [(await client.create(PODS, a_pod("", generate_name="x"), v1.Pod)).metadata.name for _ in "12"]
    assert names == ["x80000", "x40000"]


async def test_status_patches(autojump_clock: trio.testing.MockClock) -> None:
    server = APIServer()
    client = client_of(server)
    made = await client.create(PODS, a_pod(), v1.Pod)

    def patch(uid: str, **status: object) -> bytes:
        return json.dumps({"metadata": {"uid": uid}, "status": status}).encode()

    ready = {"type": "Ready", "status": "False"}
    started = {"type": "PodScheduled", "status": "True"}
    await client.patch(f"{PODS}/a/status", patch(made.metadata.uid, conditions=[ready, started]), v1.Pod)
    answer = await client.patch(
        f"{PODS}/a/status",
        patch(
            made.metadata.uid,
            phase="Running",
            conditions=[{"type": "Ready", "status": "True"}],
            containerStatuses=[{"name": "c", "ready": True}],
        ),
        v1.Pod,
    )
    assert [(c.type, c.status) for c in answer.status.conditions or ()] == [
        ("Ready", "True"),
        ("PodScheduled", "True"),
    ]
    assert answer.status.phase == "Running"
    assert await refusal(client.patch(f"{PODS}/a/status", patch("other"), v1.Pod)) == (422, "Invalid")
    version = server.store.version
    await client.patch(f"{PODS}/a/status", patch(made.metadata.uid, phase="Running"), v1.Pod)
    assert server.store.version == version


async def test_deletion_with_grace_and_preconditions(autojump_clock: trio.testing.MockClock) -> None:
    server = APIServer()
    client = client_of(server)
    made = await client.create(PODS, a_pod(), v1.Pod)
    assert await refusal(client.delete(f"{PODS}/a", uid="other")) == (409, "Conflict")
    await client.delete(f"{PODS}/a")
    ending = await client.get(f"{PODS}/a", v1.Pod)
    assert ending.metadata.deletion_grace_period_seconds == 30
    assert ending.metadata.deletion_timestamp == "2025-11-21T04:40:30Z"
    await client.delete(f"{PODS}/a", grace_seconds=100)
    assert (await client.get(f"{PODS}/a", v1.Pod)).metadata.deletion_grace_period_seconds == 30
    await client.delete(f"{PODS}/a", grace_seconds=5)
    shortened = await client.get(f"{PODS}/a", v1.Pod)
    assert shortened.metadata.deletion_timestamp == "2025-11-21T04:40:05Z"
    await client.delete(f"{PODS}/a", uid=made.metadata.uid, grace_seconds=0)
    assert await refusal(client.get(f"{PODS}/a", v1.Pod)) == (404, "NotFound")
    kept = a_pod("b", finalizers=["x/y"])
    await client.create(PODS, kept, v1.Pod)
    await client.delete(f"{PODS}/b", grace_seconds=0)
    assert (await client.get(f"{PODS}/b", v1.Pod)).metadata.deletion_timestamp
    await client.patch(f"{PODS}/b", b'{"metadata":{"finalizers":null}}', v1.Pod)
    assert await refusal(client.get(f"{PODS}/b", v1.Pod)) == (404, "NotFound")


async def test_lists_select_and_refuse_versions_from_the_future(
    autojump_clock: trio.testing.MockClock,
) -> None:
    client = client_of(APIServer())
    await client.create(PODS, a_pod("a", labels={"x": "1"}), v1.Pod)
    await client.create(PODS, a_pod("b", labels={"x": "2"}), v1.Pod)

    async def names(**params: str) -> list[str]:
        found = await client.get("/api/v1/pods", v1.PodList, params)
        return [pod.metadata.name for pod in found.items or ()]

    assert await names(labelSelector="x=2") == ["b"]
    assert await names(fieldSelector="metadata.name!=b,spec.nodeName=n") == ["a"]
    assert await names(limit="1") == ["a"]
    future = client.get("/api/v1/pods", v1.PodList, {"resourceVersion": "999999"})
    assert await refusal(future) == (504, "Timeout")


async def test_tokens_and_reviews(autojump_clock: trio.testing.MockClock) -> None:
    server = APIServer()
    client = client_of(server)
    server.store.create("serviceaccounts", "d", {"metadata": {"name": "default"}})
    pod = await client.create(PODS, a_pod(), v1.Pod)

    async def token(seconds: int, uid: str) -> Tree:
        bound = {"kind": "Pod", "name": "a", "uid": uid}
        body = {"spec": {"expirationSeconds": seconds, "boundObjectRef": bound}}
        path = "/api/v1/namespaces/d/serviceaccounts/default/token"
        answer: Tree = json.loads(
            await client.request(APIRequest("POST", path, {}, json.dumps(body).encode()))
        )
        return answer

    made = await token(3600, pod.metadata.uid)
    assert made["status"]["expirationTimestamp"] == "2025-11-21T05:40:00Z"
    assert await refusal(token(599, pod.metadata.uid)) == (422, "Invalid")
    assert await refusal(token(600, "other")) == (409, "Conflict")

    async def review(kind: str, spec: Tree) -> Tree:
        path = f"/apis/{kind}"
        body = json.dumps({"spec": spec}).encode()
        answer: Tree = json.loads(await client.request(APIRequest("POST", path, {}, body)))
        return dict(answer["status"])

    tokens = "authentication.k8s.io/v1/tokenreviews"
    known = await review(tokens, {"token": made["status"]["token"]})
    assert known["user"]["username"] == "system:serviceaccount:d:default"
    assert not (await review(tokens, {"token": "x"}))["authenticated"]
    server.review = lambda spec: bool(spec["user"] == "me")
    access = "authorization.k8s.io/v1/subjectaccessreviews"
    assert (await review(access, {"user": "me"}))["allowed"]
    assert not (await review(access, {"user": "you"}))["allowed"]


async def test_signing_requests_are_signed(autojump_clock: trio.testing.MockClock) -> None:
    import base64

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    server = APIServer()
    server.auto_sign = CA()
    key = new_key()
    assert key_pem(key).startswith(b"-----BEGIN PRIVATE KEY")
    csr = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "system:node:n")])
    )
    request = csr.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    body = {"metadata": {"generateName": "csr-"}, "spec": {"request": base64.b64encode(request).decode()}}
    made = server.store.create("certificatesigningrequests", "", body)
    signed = server.sign(made["metadata"]["name"], server.auto_sign)
    certificate = x509.load_pem_x509_certificate(base64.b64decode(signed["status"]["certificate"]))
    assert certificate.public_key() == key.public_key()


async def test_who_may_what(autojump_clock: trio.testing.MockClock) -> None:
    server = APIServer()
    server.authenticate = True
    server.tokens["t"] = User("me")
    assert await refusal(client_of(server).get(f"{PODS}/a", v1.Pod)) == (401, "Unauthorized")
    known = KubeClient(SimulatedDoor(server, headers={"Authorization": "Bearer t"}))
    server.allow = lambda user, verb, route: verb != "delete"
    await known.create(PODS, a_pod(), v1.Pod)
    assert await refusal(known.delete(f"{PODS}/a")) == (403, "Forbidden")


async def test_a_lost_answer_was_still_acted_on(autojump_clock: trio.testing.MockClock) -> None:
    server = APIServer()
    client = client_of(server)
    server.lose_answers = True
    with pytest.raises(APIUnavailable):
        await client.create(PODS, a_pod(), v1.Pod)
    server.lose_answers = False
    assert (await client.get(f"{PODS}/a", v1.Pod)).metadata.name == "a"


@pytest.mark.parametrize(
    ("old", "patch", "new"),
    [
        ({"a": 1, "b": 2}, {"a": None, "c": 3}, {"b": 2, "c": 3}),
        ({"tolerations": [1]}, {"tolerations": [2]}, {"tolerations": [2]}),
        (
            {"conditions": [{"type": "A", "x": 1}, {"type": "B"}]},
            {"conditions": [{"type": "A", "y": 2}, {"type": "C"}]},
            {"conditions": [{"type": "A", "x": 1, "y": 2}, {"type": "B"}, {"type": "C"}]},
        ),
        (
            {"conditions": [{"type": "A"}, {"type": "B"}]},
            {"conditions": [{"type": "A", "$patch": "delete"}], "$setElementOrder/conditions": []},
            {"conditions": [{"type": "B"}]},
        ),
        ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
        ({"m": {"a": 1}}, {"m": {"$patch": "replace", "b": 2}}, {"m": {"b": 2}}),
    ],
)
def test_strategic_merge(old: Tree, patch: Tree, new: Tree) -> None:
    assert strategic_merge(old, patch) == new


def test_json_merge() -> None:
    assert merge_patch({"a": [1], "b": {"c": 1, "d": 2}}, {"a": [2], "b": {"c": None}}) == {
        "a": [2],
        "b": {"d": 2},
    }
