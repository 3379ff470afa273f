"""The demo's checkpoint: for pods that reach no hub, and as Hugging Face's reference reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.lab import model as lab_model

from tests.live.support.cluster import Cluster

Values = dict[str, Any]


@dataclass(frozen=True)
class Reference:
    """What Hugging Face generates greedily: the tokens as the API names them, and their text."""

    tokens: list[str]
    text: str


@contextmanager
def lab_claim(cluster: Cluster, namespace: str, checkpoint: Path) -> Iterator[Values]:
    """A claim on this machine's checkpoint in a namespace of the lab; yields the values that read it."""
    objects = lab_model.objects(namespace, checkpoint)
    cluster.apply(*objects)
    try:
        yield {"model": {"source": lab_model.SOURCE}}
    finally:
        for one in objects:
            if one["kind"] == "PersistentVolume":
                cluster.delete("PersistentVolume", one["metadata"]["name"])


def greedy_chat(checkpoint: Path, messages: list[dict[str, str]], max_tokens: int) -> Reference:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")["input_ids"]
    made = model.generate(ids, max_new_tokens=max_tokens, do_sample=False)[0, ids.shape[1] :].tolist()
    ended = [token for token in made if token not in tokenizer.all_special_ids]
    return Reference([tokenizer.decode([token]) for token in ended], tokenizer.decode(ended))
