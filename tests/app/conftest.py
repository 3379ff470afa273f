"""A real tokenizer, and the real app over a real engine with a fake executor."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from openai import OpenAI

from llm_ray.tokenizer import Tokenizer
from tests.app.front import Front, front, serving


@pytest.fixture(scope="session")
def model_dir(request: pytest.FixtureRequest) -> str:
    return os.environ.get("LLM_RAY_TEST_MODEL") or str(request.getfixturevalue("smollm2"))


@pytest.fixture(scope="session")
def tokenizer(model_dir: str) -> Tokenizer:
    return Tokenizer(model_dir)


@pytest.fixture(scope="module")
def server(tokenizer: Tokenizer) -> Iterator[Front]:
    """Behind HTTP, with default limits."""
    with serving(tokenizer) as made:
        yield made


@pytest.fixture(scope="module")
def in_process(tokenizer: Tokenizer) -> Iterator[Front]:
    with front(tokenizer) as made:
        yield made


@pytest.fixture
def client(server: Front) -> Iterator[OpenAI]:
    with openai_client(server.url) as made:
        yield made


def openai_client(url: str, key: str = "none") -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=30)
