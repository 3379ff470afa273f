"""`llmray.v1.Inference` through Serve's gRPC proxy."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from llm_ray.api.proto.llmray.v1 import inference_pb2 as pb
from llm_ray.api.proto.llmray.v1.inference_pb2_grpc import InferenceStub
from tests.serve.running_app import MODEL_NAME, RunningApp

pytestmark = pytest.mark.serve

GREEDY = pb.Sampling(temperature=0)
CHAT = pb.Chat(messages=[pb.Message(role="user", content="What is the capital of France? Answer in one sentence.")])


@pytest.fixture(scope="module")
def channel(app: RunningApp) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(app.grpc) as opened:
        yield opened


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> InferenceStub:
    return InferenceStub(channel)


def test_health_tells_that_the_model_is_ready(stub: InferenceStub) -> None:
    health = stub.Health(pb.HealthRequest(), timeout=60)
    assert (health.ready, health.status, health.model) == (True, "ready", MODEL_NAME)


def test_generate_answers_at_once(stub: InferenceStub) -> None:
    answer = stub.Generate(pb.GenerateRequest(chat=CHAT, max_tokens=24, sampling=GREEDY), timeout=120)
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == pb.FINISH_REASON_STOP
    assert answer.usage.completion_tokens > 0


def test_generate_stream_sends_the_same_text_in_pieces(stub: InferenceStub) -> None:
    request = pb.GenerateRequest(prompt="The sea is", max_tokens=8, sampling=GREEDY)
    chunks = list(stub.GenerateStream(request, timeout=120))
    assert len(chunks) > 3
    assert "".join(chunk.text for chunk in chunks) == stub.Generate(request, timeout=120).text
    assert chunks[-1].finish_reason == pb.FINISH_REASON_LENGTH
    assert chunks[-1].usage.completion_tokens == 8


def test_an_error_has_a_code_and_one_line(stub: InferenceStub) -> None:
    wrong = pb.GenerateRequest(prompt="The sea is", model="other")
    with pytest.raises(grpc.RpcError) as unary:
        stub.Generate(wrong, timeout=60)
    with pytest.raises(grpc.RpcError) as stream:
        list(stub.GenerateStream(wrong, timeout=60))
    for error in (unary.value, stream.value):
        assert error.code() == grpc.StatusCode.NOT_FOUND
        assert error.details() == f"the model 'other' is not served here: use '{MODEL_NAME}'"


def test_reflection_describes_the_service(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert "llmray.v1.Inference" in database.get_services()
    service = DescriptorPool(database).FindServiceByName("llmray.v1.Inference")
    assert [method.name for method in service.methods] == ["Generate", "GenerateStream", "Health"]
