"""The picture shows the events of the model, is deterministic, and the copy in docs is current."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import pytest

from mockgpu.cli import main
from mockgpu.picture.drawing import picture
from mockgpu.picture.fleets import (
    Track,
    affinity,
    arrivals,
    fleet_setup,
    lane_size_mb,
    round_robin,
    simulate,
    take_lanes,
)

DOCS = Path(__file__).parents[3] / "docs" / "fleet.svg"
BACKENDS, SECONDS = 3, 60.0
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def fleets() -> dict[str, list[Track]]:
    setup = fleet_setup(BACKENDS)
    jobs = arrivals(setup, BACKENDS, SECONDS, seed=1)
    routes = {"round robin": round_robin(BACKENDS), "affinity": affinity(BACKENDS)}
    return {name: simulate(setup, jobs, BACKENDS, route, SECONDS) for name, route in routes.items()}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr(sys, "argv", ["mockgpu", "picture", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    return exit_info.value.code


def test_the_picture_in_docs_is_the_one_that_the_command_draws_today(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "fleet.svg"
    assert run(monkeypatch, "--out", str(path)) == 0
    assert path.read_bytes() == DOCS.read_bytes(), "draw it anew: mockgpu picture --out docs/fleet.svg"
    assert path.stat().st_size < 200_000


def test_without_a_file_it_goes_to_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--backends", "2", "--seconds", "20", "--seed", "5") == 0
    assert capsys.readouterr().out == picture(2, 20, 5)


def test_what_cannot_be_written_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, "--out", str(tmp_path)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mockgpu: error: --out {tmp_path}: ")


def test_the_seed_decides() -> None:
    assert picture(2, 20, 1) == picture(2, 20, 1) != picture(2, 20, 2)


@pytest.mark.parametrize(("backends", "seconds", "seed"), [(1, 1, 3), (1, 60, 1), (3, 60, 1), (5, 300, 2)])
def test_every_stay_is_drawn_where_and_when_it_was(backends: int, seconds: int, seed: int) -> None:
    root = ElementTree.fromstring(picture(backends, seconds, seed))
    spans = root.findall(f"{SVG}g")
    setup = fleet_setup(backends)
    jobs = arrivals(setup, backends, seconds, seed)
    drawn = iter(spans)
    for route in (round_robin(backends), affinity(backends)):
        for track in simulate(setup, jobs, backends, route, seconds):
            for span in track.spans:
                group = next(drawn)
                title = group.findtext(f"{SVG}title") or ""
                assert title.startswith(f"model {span.model}, ")
                assert f"loading from {span.loading_s:.1f} s" in title
                assert ("evicted" in title) == (span.evicted_s is not None)
                box = group.find(f"{SVG}rect")
                assert box is not None
                assert (float(box.get("x", "")) - 62) / 820 * seconds == pytest.approx(
                    span.loading_s, abs=seconds / 820
                )
                assert bool(group.findall(f"{SVG}use")) == (span.evicted_s is not None)
    assert list(drawn) == []


def test_all_is_within_the_frame() -> None:
    root = ElementTree.fromstring(picture())
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert width == 900
    for box in root.iter(f"{SVG}rect"):
        x, y = float(box.get("x", "0")), float(box.get("y", "0"))
        assert 0 <= x <= x + float(box.get("width", "")) <= width
        assert 0 <= y <= y + float(box.get("height", "")) <= height


@pytest.mark.parametrize("name", ["round robin", "affinity"])
def test_a_lane_has_one_model_at_a_time_and_loads_take_their_time(name: str, fleets: dict[str, list[Track]]) -> None:
    setup = fleet_setup(BACKENDS)
    models = {model.name: model for model in setup.models}
    for track in fleets[name]:
        for lane in range(setup.gpu.memory_mb // lane_size_mb(setup)):
            held = [span for span in track.spans if lane in span.lanes]
            for before, after in pairwise(held):
                assert before.evicted_s is not None and before.evicted_s <= after.loading_s
        for span in track.spans:
            assert len(span.lanes) * lane_size_mb(setup) == models[span.model].weights_mb
            if span.ready_s is not None:
                assert span.ready_s - span.loading_s == pytest.approx(models[span.model].load_s)


def test_more_models_than_fit_and_affinity_spares_loads(fleets: dict[str, list[Track]]) -> None:
    setup = fleet_setup(BACKENDS)
    assert sum(model.weights_mb for model in setup.models) > BACKENDS * setup.gpu.memory_mb
    loads = {name: sum(len(track.spans) for track in tracks) for name, tracks in fleets.items()}
    warm = {name: sum(track.warm for track in tracks) for name, tracks in fleets.items()}
    assert loads["affinity"] < loads["round robin"] and warm["affinity"] > 1.5 * warm["round robin"]
    requests = [sum(len(track.waits_s) for track in tracks) for tracks in fleets.values()]
    assert requests[0] == requests[1] > 0


def test_queues_are_noted_in_order_of_time_and_their_peaks_are_written(fleets: dict[str, list[Track]]) -> None:
    for tracks in fleets.values():
        for track in tracks:
            times_s = [at_s for at_s, _ in track.waiting]
            assert track.waiting[0] == (0.0, 0) and times_s == sorted(times_s) and times_s[-1] <= SECONDS
            assert max(depth for _, depth in track.waiting) > 0
    texts = [text.text for text in ElementTree.fromstring(picture()).iter(f"{SVG}text")]
    peaks = [str(max(depth for _, depth in track.waiting)) for tracks in fleets.values() for track in tracks]
    after_queue = [texts[number + 1] for number, text in enumerate(texts) if text == "queue"]
    assert after_queue == peaks


def test_lanes_side_by_side_if_there_are_any() -> None:
    free = [7, 0, 3, 2, 5]
    assert take_lanes(free, 2) == (2, 3)
    assert take_lanes(free, 2) == (0, 5)
    assert free == [7]


def test_affinity_keeps_a_model_on_one_backend_and_uses_all() -> None:
    route = affinity(BACKENDS)
    names = [model.name for model in fleet_setup(BACKENDS).models]
    assert {route(number, name) for number, name in enumerate(names)} == set(range(BACKENDS))
    assert all(route(0, name) == route(99, name) for name in names)
    # Rendezvous hashing: with a backend more, models move to that one alone.
    moved = {affinity(BACKENDS + 1)(0, name) for name in names if affinity(BACKENDS + 1)(0, name) != route(0, name)}
    assert moved <= {BACKENDS}
