"""The sidecar in the head pod: puts the Serve config where nobody else does, and labels the pods that serve.

`state` reads what Serve and Kubernetes say, `labels`, `puts` and `idle` decide (pure), `loop` acts on it every two
seconds.
"""
