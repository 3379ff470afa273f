"""When the Serve config is put: cases by name, then any sequence of events against a Serve that fills in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_ray.deployer import puts
from llm_ray.deployer.puts import Memory, decide, read_config
from llm_ray.deployer.state import App, Serve
from llm_ray.errors import ConfigError


def config(path: Path, **apps: Mapping[str, Any]) -> puts.Wanted:
    path.write_text(json.dumps({"applications": [{"name": name, **app} for name, app in apps.items()]}))
    return read_config(path)


@pytest.fixture
def wanted(tmp_path: Path) -> puts.Wanted:
    return config(tmp_path / "c.yaml", llm={"args": {"x": 1}})


def having(wanted: puts.Wanted, controller: str = "c", status: str = "DEPLOYING", extra: bool = True) -> Serve:
    """Serve after that PUT; it has filled in something."""
    filled = {name: {**app, "autoscaling": {}} if extra else dict(app) for name, app in wanted.apps.items()}
    return Serve(controller, {name: App(status, config=app) for name, app in filled.items()})


def accepted(wanted: puts.Wanted, now: float = 0.0) -> Memory:
    memory, reason = decide(Memory(), wanted, Serve(), now)
    assert reason == "Serve is not running"
    memory, reason = decide(puts.put_accepted(memory, wanted, Serve(), now), wanted, having(wanted), now + 2)
    assert reason == ""
    return memory


@pytest.mark.parametrize("status", ["DEPLOYING", "DEPLOY_FAILED", "UNHEALTHY", "RUNNING"])
def test_nothing_is_put_twice_whatever_becomes_of_the_application(wanted: puts.Wanted, status: str) -> None:
    memory = accepted(wanted)
    for now in range(2, 2000, 2):
        memory, reason = decide(memory, wanted, having(wanted, status=status), float(now))
        assert reason == ""


def test_a_new_deployer_leaves_a_serve_alone_that_has_the_config(wanted: puts.Wanted) -> None:
    memory, reason = decide(Memory(), wanted, having(wanted, status="DEPLOY_FAILED", extra=False), 0)
    assert reason == ""
    assert decide(memory, wanted, having(wanted, controller="d", extra=False), 2)[1] == "Serve was restarted"


def test_a_new_deployer_puts_when_serve_has_another_config(wanted: puts.Wanted, tmp_path: Path) -> None:
    other = config(tmp_path / "o.yaml", llm={"args": {"x": 2}})
    assert decide(Memory(), wanted, having(other, extra=False), 0)[1] == "Serve has another config"


def test_serves_copy_of_the_global_logging_config_is_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("logging_config: {encoding: JSON}\napplications: [{name: llm}]\n")
    copied = Serve("c", {"llm": App("RUNNING", config={"name": "llm", "logging_config": {"encoding": "JSON"}})})
    assert decide(Memory(), read_config(path), copied, 0)[1] == ""


def test_an_edit_is_put_at_once(wanted: puts.Wanted, tmp_path: Path) -> None:
    memory = accepted(wanted)
    edited = config(tmp_path / "c.yaml", llm={"args": {"x": 2}})
    assert decide(memory, edited, having(wanted), 2)[1] == "the config file has changed"


def test_a_comment_is_no_edit(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("applications:\n- {name: llm, route_prefix: /}\n")
    first = read_config(path)
    path.write_text("# hello\napplications: [{route_prefix: /, name: llm}]\n")
    assert read_config(path) == first


def test_a_restarted_serve_gets_it_again(wanted: puts.Wanted) -> None:
    memory = accepted(wanted)
    assert decide(memory, wanted, Serve(), 10)[1] == "Serve is not running"
    assert decide(memory, wanted, Serve("d", {}), 10)[1] == "Serve was restarted"


def test_a_missing_application_is_put_again(wanted: puts.Wanted) -> None:
    memory = accepted(wanted)
    deleting = Serve("c", {"llm": App("DELETING")})
    assert decide(memory, wanted, deleting, 10)[1] == "applications are missing: llm"


def test_someone_elses_change_is_undone_but_a_quarrel_slows_down(wanted: puts.Wanted, tmp_path: Path) -> None:
    memory = accepted(wanted)
    other = config(tmp_path / "o.yaml", llm={"args": {"x": 2}})
    now, times = 2.0, []
    while now < 300:
        memory, reason = decide(memory, wanted, having(other), now)
        if reason:
            assert reason == "someone else has changed the applications"
            times.append(now)
            memory = puts.put_accepted(memory, wanted, having(other), now)
            memory, reason = decide(memory, wanted, having(wanted), now)
            assert reason == ""
        now += 2
    assert times[0] == 2
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == 60


def test_an_application_of_a_driver_is_not_ours(wanted: puts.Wanted) -> None:
    memory = accepted(wanted)
    both = Serve("c", {**having(wanted).live_apps, "by-hand": App("RUNNING")})
    assert decide(memory, wanted, both, 10)[1] == ""


def test_a_rejected_config_waits_for_another_file_or_another_serve(wanted: puts.Wanted, tmp_path: Path) -> None:
    memory = puts.put_rejected(Memory(), wanted, Serve(), 0)
    assert decide(memory, wanted, Serve(), 1000)[1] == ""
    assert decide(memory, wanted, Serve("d", {}), 1000)[1] != ""
    assert decide(puts.dashboard_is_back(memory), wanted, Serve(), 1000)[1] != ""
    assert decide(memory, config(tmp_path / "c.yaml", llm={}), Serve(), 1000)[1] != ""


def test_a_failed_put_is_tried_again_later_and_later(wanted: puts.Wanted) -> None:
    memory, times = Memory(), []
    for now in range(0, 600, 2):
        memory, reason = decide(memory, wanted, Serve(), float(now))
        if reason:
            times.append(now)
            memory = puts.put_failed(memory, wanted, float(now))
    assert times[:4] == [0, 2, 6, 14]
    assert times[-1] - times[-2] == 60


def test_options_that_need_a_new_head_are_named(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("http_options: {port: 8001, host: 0.0.0.0}\ngrpc_options: {port: 9000}\napplications: []\n")
    serve = Serve("c", {}, (), {"port": 8000, "host": "0.0.0.0"}, {"port": 9000})
    assert puts.waits_for_restart(read_config(path), serve) == ["http_options.port (has 8000, wanted 8001)"]
    assert puts.waits_for_restart(read_config(path), Serve()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("a: [", "is no YAML: while parsing"),
        ("just text", "has no list `applications`"),
        ("import_path: a:b", "has no list `applications`"),
        ("applications: [1]", "has no list `applications`"),
        ("applications: [{name: llm, args: {day: 2024-01-01}}]", "a value that JSON does not know"),
        ("applications: [{name: llm, args: {x: .nan}}]", "a value that JSON does not know"),
        ("\0", "is no YAML"),
    ],
)
def test_a_broken_file_is_refused_with_its_name(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "c.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        read_config(path)
    assert str(path) in str(raised.value)


EVENTS = ["edit", "restart", "foreign", "delete", "lose", "refuse", "accept", "wait"]


class World:
    """A Serve that adds to what it is given, and everything that may happen to it."""

    def __init__(self, folder: Path) -> None:
        self.path, self.version, self.controllers = folder / "c.yaml", 0, 0
        self.controller: str | None = None
        self.apps: dict[str, Any] = {}
        self.mode, self.num_puts = "accept", 0
        self.memory, self.now = Memory(), 0.0
        self.edit()

    def edit(self) -> None:
        self.version += 1
        self.wanted = config(self.path, llm={"args": {"version": self.version}})

    def happen(self, event: str) -> None:
        match event:
            case "edit":
                self.edit()
            case "restart":
                self.controller, self.apps = None, {}
            case "foreign" if self.controller:
                self.apps = {"llm": {"name": "llm", "args": {"foreign": self.version}}, "more": {"name": "more"}}
            case "delete":
                self.apps.pop("llm", None)
            case "lose" | "refuse" | "accept":
                self.mode = event

    def tick(self) -> None:
        self.now += 2
        serve = Serve(self.controller, {name: App("RUNNING", config=app) for name, app in self.apps.items()})
        self.memory, reason = decide(self.memory, self.wanted, serve, self.now)
        if not reason:
            return
        self.num_puts += 1
        if self.mode == "refuse":
            self.memory = puts.put_rejected(self.memory, self.wanted, serve, self.now)
        elif self.mode == "lose":
            self.memory = puts.put_failed(self.memory, self.wanted, self.now)
        else:
            if self.controller is None:
                self.controllers += 1
                self.controller = f"c{self.controllers}"
            self.apps = {name: {**app, "filled": True} for name, app in self.wanted.apps.items()}
            self.memory = puts.put_accepted(self.memory, self.wanted, serve, self.now)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(EVENTS), max_size=20))
def test_serve_ends_with_what_the_file_says_and_is_not_put_to_in_vain(tmp_path_factory, events) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    for event in events:
        world.happen(event)
        world.tick()
        if event in ("edit", "restart", "foreign", "delete"):
            before = world.num_puts
            for _ in range(100):
                world.tick()
            assert world.num_puts - before <= (1 if world.mode != "lose" else 10)
    world.mode = "accept"
    world.edit()
    for _ in range(100):
        world.tick()
    assert world.apps == {"llm": {"name": "llm", "args": {"version": world.version}, "filled": True}}
    settled = world.num_puts
    for _ in range(1000):
        world.tick()
    assert world.num_puts == settled
