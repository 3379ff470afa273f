"""The defaults of the chart's values that a simulation reads."""

from __future__ import annotations

from typing import Any

Values = dict[str, Any]


def default_values() -> Values:
    """What charts/llm-ray/values.yaml says; a test keeps the two equal."""
    return {
        "engine": {
            "tensorParallelSize": 1,
            "pipelineParallelSize": 1,
            "maxNumSeqs": 64,
            "maxNumBatchedTokens": 512,
            "longPrefillTokenThreshold": 64,
            "numGpusPerRank": None,
        },
        "serve": {
            "server": {"maxQueueLen": 256},
            "deployment": {
                "minReplicas": None,
                "maxReplicas": None,
                "targetOngoingRequests": 32,
                "upscaleDelayS": 30,
                "downscaleDelayS": 600,
            },
        },
        "workerDefaults": {
            "gpusPerNode": 0,
            "ranksPerNode": None,
            "numOfHosts": None,
            "numGpus": None,
            "replicas": 1,
            "minReplicas": None,
            "maxReplicas": None,
            "idleTimeoutSeconds": None,
        },
        "workers": {},
        "autoscaling": _default_autoscaling(),
        "monitoring": {"podMonitor": {"interval": "15s"}},
    }


def _default_autoscaling() -> Values:
    return {
        "mode": "fixed",
        "serve": {"idleTimeoutSeconds": 300},
        "hpa": {
            "provider": "hpa",
            "metricType": "AverageValue",
            "averageValue": 30,
            "tolerance": None,
            "behavior": {
                "scaleUp": {
                    "stabilizationWindowSeconds": 0,
                    "policies": [
                        {"type": "Percent", "value": 100, "periodSeconds": 60},
                        {"type": "Pods", "value": 2, "periodSeconds": 60},
                    ],
                },
                "scaleDown": {
                    "stabilizationWindowSeconds": 600,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}],
                },
            },
            "keda": {"pollingInterval": 15, "cooldownPeriod": 600},
        },
    }
