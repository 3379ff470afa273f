"""Fixtures of the live suite: any cluster by --kube-config, this machine's lab by default."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from ci.lab.settings import settings

from tests.live.support import needs
from tests.live.support.cluster import Cluster, NoClusterError, connect
from tests.live.support.evidence import Collector
from tests.live.support.helm import Helm
from tests.live.support.models import Values, lab_claim
from tests.live.support.namespaces import Namespaces
from tests.live.support.waiting import Waiter

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "build" / "live"
IMAGE = "localhost/llm-ray:dev"
LAB_MODEL = "lab"

MakeNamespace = Callable[..., str]
ModelFor = Callable[[str], Values]
COLLECTOR = pytest.StashKey[Collector]()
NAMESPACES = pytest.StashKey[Namespaces]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("live")
    group.addoption("--kube-config", dest="kubeconfig", help="kubeconfig of the cluster (default: the lab's)")
    group.addoption(
        "--image", default=IMAGE, help="the llm-ray image that the cluster's nodes have (default %(default)s)"
    )
    group.addoption(
        "--model-source",
        default=LAB_MODEL,
        help=f"model.source of the chart for SmolLM2-135M-Instruct; `{LAB_MODEL}` is this machine's copy (default)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The mark `image` follows from `needs`: by it the two labs of `make test-live` share the tests."""
    for item in items:
        if any("image" in mark.args for mark in item.iter_markers("needs")):
            item.add_marker(pytest.mark.image)


@pytest.fixture(scope="session")
def kube_config(pytestconfig: pytest.Config) -> str:
    """--kube-config, or pytest-helm-charts' own spelling --kubeconfig; that plugin's fixtures use this one as well."""
    return str(pytestconfig.getoption("kubeconfig") or settings().kubeconfig)


@pytest.fixture(scope="session")
def image(pytestconfig: pytest.Config) -> str:
    return str(pytestconfig.getoption("--image", IMAGE))


@pytest.fixture(scope="session")
def cluster(kube_config: str) -> Cluster:
    try:
        return connect(Path(kube_config))
    except NoClusterError as error:
        raise NoClusterError(f"{error}: start the lab with `make lab-up`, or give --kube-config FILE") from None


@pytest.fixture(scope="module")
def model_for(pytestconfig: pytest.Config, cluster: Cluster, smollm2: Path) -> Iterator[ModelFor]:
    """Call it with a namespace, before the chart's install there, for the values by which pods find the checkpoint."""
    source = pytestconfig.getoption("--model-source", LAB_MODEL)
    with ExitStack() as stack:

        def values(namespace: str) -> Values:
            if source == LAB_MODEL:
                return stack.enter_context(lab_claim(cluster, namespace, smollm2))
            return {"model": {"source": source}}

        yield values


@pytest.fixture(scope="session")
def helms(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Helm]:
    home = tmp_path_factory.mktemp("helm")
    return {name: Helm(name, cluster.kubeconfig, home) for name in ("helm3", "helm4")}


@pytest.fixture(scope="session")
def helm(helms: Mapping[str, Helm]) -> Helm:
    """Helm 4; `helms` has both."""
    return helms["helm4"]


@pytest.fixture(scope="session")
def wait(cluster: Cluster) -> Waiter:
    return Waiter(cluster)


@pytest.fixture(scope="session")
def namespaces(cluster: Cluster, helm: Helm, pytestconfig: pytest.Config) -> Iterator[Namespaces]:
    """The namespaces of this run, and with them what is kept of a failure."""
    made = Namespaces(cluster)
    pytestconfig.stash[NAMESPACES] = made
    pytestconfig.stash[COLLECTOR] = Collector(cluster, helm, EVIDENCE)
    yield made
    made.settle()


@pytest.fixture
def make_namespace(namespaces: Namespaces, request: pytest.FixtureRequest) -> Iterator[MakeNamespace]:
    """Call it for a fresh namespace of this test, with labels if needed; gone when the test is over."""
    yield from _maker(namespaces, request.node.name)


@pytest.fixture(scope="module")
def make_module_namespace(namespaces: Namespaces, request: pytest.FixtureRequest) -> Iterator[MakeNamespace]:
    """The same for all tests of a module."""
    yield from _maker(namespaces, request.node.path.stem)


def _maker(namespaces: Namespaces, stem: str) -> Iterator[MakeNamespace]:
    with ExitStack() as stack:

        def make(labels: Mapping[str, str] | None = None, stem: str = stem) -> str:
            made: AbstractContextManager[str] = namespaces.make(stem, labels)
            return stack.enter_context(made)

        yield make


@pytest.fixture
def namespace(make_namespace: MakeNamespace) -> str:
    return make_namespace()


@pytest.fixture(autouse=True, scope="module")
def _cluster_has_what_is_needed(request: pytest.FixtureRequest) -> None:
    """The marks `needs` of a module are checked before its first fixture makes anything."""
    wanted = tuple(need for mark in request.node.iter_markers("needs") for need in mark.args)
    if wanted:
        needs.check(request.getfixturevalue("cluster"), wanted, request.getfixturevalue("image"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Collect before the fixtures are torn down, and with them the namespaces."""
    report = yield
    collector, open_ones = item.config.stash.get(COLLECTOR, None), item.config.stash.get(NAMESPACES, None)
    if report.failed and collector is not None and open_ones is not None:
        text = re.sub(r"\x1b\[[0-9;]*m", "", report.longreprtext)
        folder = collector.collect(f"{item.nodeid}-{report.when}", text, open_ones.open)
        report.sections.append(("evidence", f"{folder.relative_to(ROOT)}: events, objects, logs of pods and of Ray"))
    return report
