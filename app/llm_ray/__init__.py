"""llm-ray: serve large language models on Ray with DeepSpeed tensor parallelism."""

__version__ = "0.1.0"
