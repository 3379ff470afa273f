"""What every panel and dashboard has: data source, variables, legend, size. Knows no metric but `up`."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, TooltipDisplayMode, VisibilityMode
from grafana_foundation_sdk.models.dashboard import DashboardCursorSync, DataSourceRef, VariableRefresh, VariableSort

from dashboards import metrics as m

TAG = "llm-ray"
DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
RELEASE = 'namespace=~"$namespace",llm_ray_name=~"$release"'
"""Matchers of the chosen releases, for the inside of a selector."""


@dataclass(frozen=True)
class Query:
    """A PromQL expression and the name of the lines it draws."""

    expr: str
    legend: str


def panel(
    title: str, description: str, unit: str, *queries: Query, height: int = 8, width: int = 8
) -> timeseries.Panel:
    """A time series panel; the description says what is shown, what is normal, and what to do when it is not."""
    built = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .unit(unit)
        .datasource(DATASOURCE)
        .height(height)
        .span(width)
        .min(0)
        .line_width(1)
        .fill_opacity(10)
        .show_points(VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
    )
    for index, query in enumerate(queries):
        built = built.with_target(
            prometheus.Dataquery()
            .expr(query.expr)
            .legend_format(query.legend)
            .datasource(DATASOURCE)
            .ref_id(chr(ord("A") + index))
            .range()
        )
    return built


def quantile(share: float, histogram: m.Metric, matchers: str, by: str) -> str:
    """A quantile over $__rate_interval of the chosen releases; by are labels beside le."""
    rate = f"rate({histogram.series}{{{RELEASE}{matchers}}}[$__rate_interval])"
    return f"histogram_quantile({share}, sum by (le, {by}) ({rate}))"


def per_second(counter: m.Metric, matchers: str, by: str) -> str:
    """Rate over $__rate_interval of the chosen releases, summed."""
    return f"sum by ({by}) (rate({counter.series}{{{RELEASE}{matchers}}}[$__rate_interval]))"


def board(uid: str, title: str, description: str) -> dashboard.Dashboard:
    """An empty dashboard with the variables datasource, namespace and release."""
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .readonly()
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(dashboard.DashboardLink("LLM Ray").tags([TAG]).as_dropdown(True).keep_time(True).include_vars(True))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
        .with_variable(_label_variable("namespace", "Namespace", f'{m.UP.series}{{llm_ray_name!=""}}', "namespace"))
        .with_variable(
            _label_variable(
                "release",
                "Release",
                f'{m.UP.series}{{llm_ray_name!="",namespace=~"$namespace"}}',
                "llm_ray_name",
            )
        )
    )


def _label_variable(name: str, label: str, series: str, of: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(f"label_values({series}, {of})")
        .datasource(DATASOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".+")
    )
