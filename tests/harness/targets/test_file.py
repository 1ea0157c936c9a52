import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.claims.file import claims_file
from harness.scenario.model import ClaimsError, TargetError, UnsupportedError, World
from harness.targets.base import Address, Deployment, RunCommand, WriteFile
from harness.targets.file import FileTarget

PYTHON = Path(sys.executable).as_posix()
RUN = f"""
[balancer]
name = "acme"
version = "2.3.1"
correlate = ["json:seed"]
[backends]
health_path = "/healthz"
[run]
config = "templates/acme.conf.j2"
start = ["{PYTHON}", "-c", "pass", "{{config}}", "--dir={{workdir}}", "{{host}}:{{port}}", "{{admin_port}}"]
reload = ["{PYTHON}", "-c", "pass", "reload", "{{config}}"]
switches = ["retry"]
[claims.affinity]
[claims.retry]
"""
TEMPLATE = """listen {{ host }}:{{ port }} admin {{ admin_port }} in {{ workdir }}
{% for backend in backends -%}
server {{ backend.id }} {{ backend.host }}:{{ backend.port }} weight={{ backend.weight }}
{% endfor -%}
retries {{ "off" if "retry" in off else "on" }}
"""


def target_of(folder: Path, text: str, template: str | None = TEMPLATE) -> FileTarget:
    file = folder / "acme.toml"
    file.write_text(text)
    if template is not None:
        (folder / "templates").mkdir(exist_ok=True)
        (folder / "templates" / "acme.conf.j2").write_text(template)
    return FileTarget(claims_file(file))


def place_in(workdir: Path, off: frozenset[str] = frozenset()) -> Deployment:
    backends = (Address("gpu-1", "127.0.0.1", 9001, 2), Address("gpu-0", "127.0.0.1", 9000))
    return Deployment(workdir, "127.0.0.1", 8080, 8081, backends, off)


def test_run_section_renders_template_and_commands(tmp_path: Path) -> None:
    target = target_of(tmp_path, RUN)
    work = tmp_path / "work"
    launch = target.launch(place_in(work))
    assert launch.files == {
        "acme.conf": f"listen 127.0.0.1:8080 admin 8081 in {work}\n"
        "server gpu-1 127.0.0.1:9001 weight=2\nserver gpu-0 127.0.0.1:9000 weight=1\nretries on\n"
    }
    assert launch.start[3:] == (str(work / "acme.conf"), f"--dir={work}", "127.0.0.1:8080", "8081")
    assert launch.check == ()


def test_file_tells_everything_about_the_target(tmp_path: Path) -> None:
    target = target_of(tmp_path, RUN)
    assert (target.name, target.version, target.health_path) == ("acme", "2.3.1", "/healthz")
    assert target.correlate == ("header:x-mock-tag", "json:seed")
    assert target.claims.names == ("affinity", "retry")
    assert target.claims.can_join and target.claims.can_reload
    assert target.worlds == {World.LIVE}
    assert target.switches == {"retry"}
    assert (target.url, target.listen) == (None, ())
    assert target.scaled(2.0) is None


def test_template_is_given_the_features_to_leave_out(tmp_path: Path) -> None:
    launch = target_of(tmp_path, RUN).launch(place_in(tmp_path, frozenset({"retry"})))
    assert launch.files["acme.conf"].endswith("retries off\n")


def test_change_writes_the_file_and_runs_reload(tmp_path: Path) -> None:
    target = target_of(tmp_path, RUN)
    write, run = target.change(place_in(tmp_path))
    assert write == WriteFile("acme.conf", target.launch(place_in(tmp_path)).files["acme.conf"])
    assert run == RunCommand((PYTHON, "-c", "pass", "reload", str(tmp_path / "acme.conf")))


def test_weights_and_draining_reach_the_template(tmp_path: Path) -> None:
    backends = (Address("gpu-0", "127.0.0.1", 9000, draining=True), Address("gpu-1", "127.0.0.1", 9001, 3))
    deployment = replace(place_in(tmp_path), backends=backends)
    target = target_of(tmp_path, RUN, TEMPLATE.replace("weight={{", "{{ 'off' if backend.draining }} weight={{"))
    write, _ = target.change(deployment)
    assert isinstance(write, WriteFile)
    assert "server gpu-0 127.0.0.1:9000 off weight=1\nserver gpu-1 127.0.0.1:9001  weight=3\n" in write.text


def test_a_template_without_weights_or_draining_cannot_tell_of_them(tmp_path: Path) -> None:
    plain = Address("gpu-0", "127.0.0.1", 9000)
    target = target_of(tmp_path, RUN, TEMPLATE.replace(" weight={{ backend.weight }}", ""))
    for changed, name in ((replace(plain, weight=2), "weight"), (replace(plain, draining=True), "draining")):
        with pytest.raises(UnsupportedError, match=f"^the template does not use {name} of its backends$"):
            target.change(replace(place_in(tmp_path), backends=(changed,)))
    assert target.change(replace(place_in(tmp_path), backends=(plain,)))


def test_a_check_is_run_if_there_is_one(tmp_path: Path) -> None:
    target = target_of(tmp_path, RUN.replace("[run]", f'[run]\ncheck = ["{PYTHON}", "-t", "{{config}}"]'))
    launch = target.launch(place_in(tmp_path))
    assert launch.check == (PYTHON, "-t", str(tmp_path / "acme.conf"))
    assert launch.start[0] == PYTHON


def test_without_reload_membership_is_fixed(tmp_path: Path) -> None:
    text = "\n".join(line for line in RUN.splitlines() if not line.startswith("reload"))
    target = target_of(tmp_path, text)
    assert not target.claims.can_join
    with pytest.raises(UnsupportedError, match="cannot change membership"):
        target.change(place_in(tmp_path))


def test_running_balancer_has_fixed_addresses(tmp_path: Path) -> None:
    target = target_of(
        tmp_path,
        '[balancer]\nurl = "http://127.0.0.1:8080/"\n'
        '[backends]\nlisten = ["127.0.0.1:9001", "127.0.0.1:9002"]\n[claims.spread]\n',
    )
    launch = target.launch(place_in(tmp_path))
    assert (dict(launch.files), launch.start, launch.check) == ({}, (), ())
    assert target.url == "http://127.0.0.1:8080"
    assert target.listen == (("127.0.0.1", 9001), ("127.0.0.1", 9002))
    assert target.claims.fixed_backends == 2
    assert target.switches == frozenset()
    with pytest.raises(UnsupportedError, match="cannot change membership"):
        target.change(place_in(tmp_path))


def test_run_section_may_go_with_fixed_addresses(tmp_path: Path) -> None:
    text = RUN.replace('version = "2.3.1"', 'url = "http://127.0.0.1:7000"').replace(
        "[backends]", '[backends]\nlisten = ["127.0.0.1:9001"]'
    )
    target = target_of(tmp_path, text)
    assert (target.url, target.listen) == ("http://127.0.0.1:7000", (("127.0.0.1", 9001),))
    assert target.launch(place_in(tmp_path)).start[0] == PYTHON


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "https://127.0.0.1:1", "http://127.0.0.1", "http://127.0.0.1:x"])
def test_wrong_url_is_one_line(tmp_path: Path, url: str) -> None:
    text = RUN.replace('version = "2.3.1"', f'url = "{url}"')
    with pytest.raises(ClaimsError, match=r"balancer\.url: saw .*expected http://127.0.0.1:PORT"):
        target_of(tmp_path, text)


def test_unknown_placeholder_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ClaimsError, match=r"unknown \{workdri\}; did you mean workdir\?"):
        target_of(tmp_path, RUN.replace("{workdir}", "{workdri}"))
    with pytest.raises(ClaimsError, match=r"unknown \{confg\}; did you mean config\?"):
        target_of(tmp_path, RUN.replace('"reload", "{config}"', '"reload", "{confg}"'))
    with pytest.raises(ClaimsError, match=r"unknown \{config_file\}; "):
        target_of(tmp_path, RUN.replace("[run]", '[run]\ncheck = ["acme", "{config_file}"]'))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ prot }}\n", r"^template /.*/templates/acme\.conf\.j2:1: 'prot' is undefined$"),
        ("one\ntwo {{ prot }}\n", r"/templates/acme\.conf\.j2:2: 'prot' is undefined$"),
        ("one\n\n{% for backend in backends %}\n", r"/templates/acme\.conf\.j2:3: "),
        ("{{ backends[0].id }}\n{{ backends[7].id }}", r"/templates/acme\.conf\.j2:2: "),
        ("\n\n\n{{ port / 0 }}", r"/templates/acme\.conf\.j2:4: division by zero$"),
        ("\n{% include 'gone.j2' %}", r"/templates/acme\.conf\.j2:2: 'gone\.j2' not found"),
        ("\n{{ port|nofilter }}", r"/templates/acme\.conf\.j2:2: No filter named 'nofilter'"),
    ],
)
def test_template_error_names_file_and_line(tmp_path: Path, template: str, message: str) -> None:
    with pytest.raises(TargetError, match=message) as caught:
        target_of(tmp_path, RUN, template).launch(place_in(tmp_path))
    assert "\n" not in str(caught.value)


def test_missing_template_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"/templates/acme\.conf\.j2: no such template"):
        target_of(tmp_path, RUN, None).launch(place_in(tmp_path))


@pytest.mark.parametrize("command", ["check", "start", "reload"])
def test_missing_command_is_found_before_the_run(tmp_path: Path, command: str) -> None:
    text = RUN.replace("[run]", f'[run]\ncheck = ["{PYTHON}"]')
    text = text.replace(f'{command} = ["{PYTHON}"', f'{command} = ["acme-that-is-not-there"')
    with pytest.raises(TargetError, match="acme: no command 'acme-that-is-not-there'"):
        target_of(tmp_path, text).launch(place_in(tmp_path))


def test_command_as_relative_path_lies_beside_the_claims_file(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "acme"
    program.parent.mkdir()
    program.symlink_to(PYTHON)
    text = RUN.replace(f'start = ["{PYTHON}"', 'start = ["bin/acme"')
    assert target_of(tmp_path, text).launch(place_in(tmp_path / "work")).start[0] == str(program)
