"""What is in deploy/ fits Kubernetes' schemas, the commands that it runs, and itself. Needs no cluster and no network.

`kustomize` is no Python package, so what is used of it is read here: resources, namespace, labels and patches by
strategic merge. A key that this does not know fails the test.
"""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml

from harness.cli import app as steelyard
from mockgpu.cli import app as mockgpu

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
IMAGE_ROOT = "/opt/steelyard"
VERSIONS = ("1.28", "1.37")
"""The oldest and the newest that the manifests are meant for."""

Document = dict[str, Any]


def resolved(folder: Path) -> list[Document]:
    """The documents that the kustomization in `folder` comes to."""
    (told,) = yaml.safe_load_all((folder / "kustomization.yaml").read_text())
    assert (told.pop("apiVersion"), told.pop("kind")) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    documents: list[Document] = []
    for name in told.pop("resources"):
        path = folder / name
        documents += resolved(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    for patch in told.pop("patches", []):
        (change,) = yaml.safe_load_all((folder / patch["path"]).read_text())
        (place,) = [at for at, item in enumerate(documents) if identity(item) == identity(change)]
        documents[place] = merged(documents[place], change)
    namespace = told.pop("namespace", "")
    for labels in told.pop("labels", []):
        for item in documents:
            item["metadata"].setdefault("labels", {}).update(labels["pairs"])
    for item in documents:
        if namespace and item["kind"] != "Namespace":
            item["metadata"]["namespace"] = namespace
    assert told == {}, f"{folder}: {sorted(told)} in kustomization.yaml is not read by this test"
    return documents


def identity(document: Document) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def merged(before: Any, change: Any) -> Any:
    """A strategic merge: mappings by key, lists of named things by name, everything else replaced."""
    if isinstance(before, dict) and isinstance(change, dict):
        return {**before, **{key: merged(before.get(key), value) for key, value in change.items()}}
    if isinstance(before, list) and all(isinstance(item, dict) and "name" in item for item in [*before, *change]):
        by_name = {item["name"]: item for item in before}
        unknown = {item["name"] for item in change} - set(by_name)
        assert not unknown, f"a patch names {unknown}, which is not there"
        return [merged(item, {named["name"]: named for named in change}.get(item["name"], {})) for item in before]
    return copy.deepcopy(change)


FOLDERS = {"base": DEPLOY / "base", "small": DEPLOY / "overlays" / "small"}
DOCUMENTS = [(name, item) for name, folder in FOLDERS.items() for item in resolved(folder)]
WORKLOADS = [(name, item) for name, item in DOCUMENTS if item["kind"] in ("Deployment", "StatefulSet")]


def ids(cases: list[tuple[str, Document]]) -> list[str]:
    return [f"{name}-{item['kind']}-{item['metadata']['name']}" for name, item in cases]


def only_container(workload: Document) -> Document:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    found: Document = container
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "document"), DOCUMENTS, ids=ids(DOCUMENTS))
def test_fits_the_schema(name: str, document: Document, version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_a_slip_does_not_fit() -> None:
    slip = copy.deepcopy(WORKLOADS[0][1])
    slip["spec"]["replcas"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(slip, VERSIONS[-1], strict=True)


def test_every_file_is_used() -> None:
    for folder in FOLDERS.values():
        (told,) = yaml.safe_load_all((folder / "kustomization.yaml").read_text())
        named = {*told["resources"], *(patch["path"] for patch in told.get("patches", []))}
        assert {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"} <= named


@pytest.mark.parametrize(("name", "workload"), WORKLOADS, ids=ids(WORKLOADS))
def test_the_command_is_one_that_we_have(name: str, workload: Document) -> None:
    container = only_container(workload)
    program, *words = container["command"]
    args = [*words, *container["args"]]
    if program == "locust":
        parsed_by_locust(args)
        return
    command: Any = typer.main.get_command({"steelyard": steelyard, "mockgpu": mockgpu}[program])
    # The context of the subcommand: all options are parsed and checked, and nothing runs.
    command.commands[args[0]].make_context(args[0], args[1:])


def parsed_by_locust(args: list[str]) -> None:
    """Locust and our locustfile take these options. In a process of its own, as importing Locust patches this one."""
    (file,) = [word.partition("=")[2] for word in args if word.startswith("--locustfile=")]
    assert file.startswith(f"{IMAGE_ROOT}/") and (ROOT / file.removeprefix(f"{IMAGE_ROOT}/")).is_file()
    script = (
        "import sys, locust, harness.load.locust_engine.locustfile\n"
        "from locust.argument_parser import parse_options\n"
        "told = parse_options(args=sys.argv[1:])\n"
        "print(told.rate, told.duration, told.host)\n"
    )
    command = [sys.executable, "-c", script, *args]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_options_that_we_do_not_have_are_seen() -> None:
    command: Any = typer.main.get_command(steelyard)
    with pytest.raises(Exception, match="No such option"):
        command.commands["toxiproxy"].make_context("toxiproxy", ["--prot", "1"])
    with pytest.raises(AssertionError, match=r"unrecognized arguments|expected a number"):
        parsed_by_locust([f"--locustfile={IMAGE_ROOT}/harness/load/locust_engine/locustfile.py", "--rate=fast"])


@pytest.mark.parametrize(("name", "workload"), WORKLOADS, ids=ids(WORKLOADS))
def test_ports_are_those_of_the_command(name: str, workload: Document) -> None:
    container = only_container(workload)
    words = [part for word in [*container["command"], *container["args"]] for part in word.split("=", 1)]
    asked = {int(value) for option, value in pairwise(words) if re.fullmatch(r"--(\w+-)*port", option)}
    if "--worker" in words:
        assert "ports" not in container
        return
    asked |= {int(item["listen"].rpartition(":")[2]) for item in proxies() if "toxiproxy" in words}
    assert asked == {port["containerPort"] for port in container["ports"]}
    named = {port["name"] for port in container["ports"]}
    probe = container["readinessProbe"]
    assert (probe.get("httpGet") or probe["tcpSocket"])["port"] in named
    if container["command"][0] in ("steelyard", "mockgpu"):
        assert "0.0.0.0" in words, "it listens on loopback alone, where no other pod reaches it"


@pytest.mark.parametrize("overlay", FOLDERS)
def test_services_select_what_is_there(overlay: str) -> None:
    workloads = [item for name, item in WORKLOADS if name == overlay]
    for name, service in DOCUMENTS:
        if name == overlay and service["kind"] == "Service":
            label = service["spec"]["selector"]
            (behind,) = [item for item in workloads if item["spec"]["template"]["metadata"]["labels"] == label]
            assert behind["spec"]["selector"]["matchLabels"] == label
            ports = {port["name"] for port in only_container(behind)["ports"]}
            assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def proxies() -> list[Document]:
    (settings,) = [item for name, item in DOCUMENTS if name == "base" and item["kind"] == "ConfigMap"]
    told: list[Document] = json.loads(settings["data"]["proxies.json"])
    return told


def test_the_fault_proxy_knows_every_backend() -> None:
    for overlay in FOLDERS:
        (fleet,) = [item for name, item in WORKLOADS if name == overlay and item["kind"] == "StatefulSet"]
        known = [f"mock-fleet-{number}.mock-fleet:9001" for number in range(fleet["spec"]["replicas"])]
        assert [item["upstream"] for item in proxies()] == known
    (balancer,) = [item for name, item in WORKLOADS if item["metadata"]["name"] == "balancer"]
    backends = re.findall(r"http://fault-proxy:(\d+)", " ".join(only_container(balancer)["args"]))
    assert backends == [item["listen"].rpartition(":")[2] for item in proxies()]


def test_the_image_has_what_the_manifests_name() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert f"WORKDIR {IMAGE_ROOT}\n" in text
    for source in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        for name in source.split():
            assert (ROOT / name).exists(), name
    (user,) = re.findall(r"^USER (\d+)$", text, re.MULTILINE)  # by number, or runAsNonRoot cannot be checked
    assert int(user) > 0
