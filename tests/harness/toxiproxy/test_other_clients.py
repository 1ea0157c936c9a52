"""Third-party clients work with the embedded server as with a real one, which is tested too if installed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import toxiproxy
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from tests.harness.toxiproxy import rig
from tests.harness.toxiproxy.rig import BackendWith

NODE_CLIENT = "toxiproxy-node-client@4.1.0"
NPM_S = 60.0


@pytest.fixture(scope="session")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the npm client; skips without node, npm or network."""
    for binary in ("node", "npm"):
        if shutil.which(binary) is None:
            pytest.skip(f"no {binary} on PATH")
    folder = tmp_path_factory.mktemp("node")
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), NODE_CLIENT]
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=NPM_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm could not fetch {NODE_CLIENT} within {NPM_S:g} s")
    if result.returncode != 0:
        pytest.skip(f"npm could not fetch {NODE_CLIENT}: {' '.join(result.stderr.split())[-200:]}")
    return folder


@pytest.mark.parametrize("kind", rig.KINDS)
def test_the_npm_client(kind: str, node_folder: Path) -> None:
    with rig.start_server(kind) as server:
        (port,) = rig.free_ports(1)
        listen, upstream = f"127.0.0.1:{port}", "127.0.0.1:1"
        result = subprocess.run(
            ["node", str(Path(__file__).parent / "drive.js"), f"http://127.0.0.1:{server.port}", listen, upstream],
            cwd=node_folder,
            capture_output=True,
            text=True,
            timeout=rig.LONG_S,
            check=False,
        )
    assert (result.returncode, result.stderr) == (0, "")
    observed: dict[str, Any] = json.loads(result.stdout)
    latency = {"name": "slow", "stream": "upstream"}
    assert json.loads(observed.pop("version"))["version"] in ("2.12.0", "git")
    assert observed == {
        "created": {"name": "node", "listen": listen, "upstream": upstream, "enabled": True},
        "twice": "Request failed with status code 409",
        "added": {**latency, "toxicity": 0.5, "attributes": {"latency": 20, "jitter": 3}},
        "updated": {**latency, "toxicity": 1, "attributes": {"latency": 30, "jitter": 3}},
        "fetched": {**latency, "toxicity": 1, "attributes": {"latency": 30, "jitter": 3}},
        "removed": "Request failed with status code 404",
        "disabled": False,
        "afterReset": True,
        "cut": "Request failed with status code 404",
        "populated": ["node", "other"],
        "all": ["node", "other"],
        "left": [],
    }


@pytest.mark.parametrize("kind", rig.KINDS)
def test_the_python_client(backend_with: BackendWith, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bare library, without the additions of `harness.toxiproxy.client`."""
    monkeypatch.setenv("NO_PROXY", "*")
    backend = backend_with(rig.echo)
    upstream = f"127.0.0.1:{backend.port}"
    with rig.start_server(kind) as server:
        monkeypatch.setattr(toxiproxy.api.APIConsumer, "host", "127.0.0.1")
        monkeypatch.setattr(toxiproxy.api.APIConsumer, "port", server.port)
        client = toxiproxy.Toxiproxy()
        assert client.running()
        proxy = client.create(name="python", upstream=upstream)
        assert (proxy.enabled, proxy.upstream) == (True, upstream)
        with pytest.raises(ProxyExists):
            client.create(name="python", upstream=upstream)
        with rig.connect(int(proxy.listen.rpartition(":")[2])) as talk:
            proxy.add_toxic(name="slow", type="latency", stream="upstream", attributes={"latency": 50})
            assert rig.round_trip_s(talk) >= 0.05
            assert proxy.get_toxic("slow").attributes == {"latency": 50, "jitter": 0}
            with pytest.raises(InvalidToxic):
                proxy.add_toxic(type="delay")
            proxy.destroy_toxic("slow")
            assert proxy.toxics() == {}
            with proxy.down():
                assert rig.read_to_end(talk) == (b"", "EOF")
                assert not client.get_proxy("python").enabled
        proxy.disable()
        proxy.add_toxic(type="timeout", attributes={"timeout": 0})
        client.reset()
        assert (client.get_proxy("python").enabled, client.get_proxy("python").toxics()) == (True, {})
        (other,) = client.populate([{"name": "other", "listen": "127.0.0.1:0", "upstream": upstream}])
        assert set(client.proxies()) == {"python", "other"}
        other.destroy()
        with pytest.raises(NotFound):
            other.destroy()
        client.destroy_all()
        assert client.proxies() == {}
