"""Replicas and open requests over time as a PNG. The only module that needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from llm_ray.errors import ConfigError
from llm_ray.simulate.simulator import Result


def require_matplotlib() -> None:
    """Say so before a long run, not after it."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ConfigError(
            "--plot needs matplotlib: pip install 'llm-ray[plot]', or use --curve for a CSV file"
        ) from None


def write_png(path: Path, result: Result) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    times = [*(point.t for point in result.curve), result.end]
    for column, label in (("wanted", "wanted"), ("pods", "with pods"), ("ready", "serving")):
        counts = [getattr(point, column) for point in result.curve]
        above.step(times, [*counts, counts[-1]], where="post", label=label)
    above.set_ylabel("replicas")
    above.set_ylim(bottom=0)
    above.legend()
    moments = [sample.t for sample in result.samples]
    below.plot(moments, [sample.open for sample in result.samples], label="open")
    below.plot(moments, [sample.waiting for sample in result.samples], label="of them waiting")
    below.set_ylabel("requests")
    below.set_xlabel("seconds since the start of the trace")
    below.set_ylim(bottom=0)
    below.legend()
    figure.savefig(path, dpi=100)
