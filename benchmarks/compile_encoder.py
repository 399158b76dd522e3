"""What torch.compile gains in training: forward and backward pass of an encoder of MiniLM's shape, eager and compiled.

    python benchmarks/compile_encoder.py [--batch-size 16] [--length 128] [--threads 1] [--repeats 5]

In bfloat16 without dropout, at one fixed length. Time is the process's own, so other jobs do not count; the two take
turns and the medians are compared. The first pass, which compiles, is reported apart.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from transformers import BertConfig, BertModel

SHAPE = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}


def encoder() -> BertModel:
    """A new encoder, always with the same weights."""
    torch.manual_seed(0)
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **SHAPE)
    return BertModel(config, add_pooling_layer=False).train()


def step(model: Any, ids: torch.Tensor) -> float:
    """Processor seconds of a forward and a backward pass."""
    started = time.process_time()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    hidden.float().square().mean().backward()
    model.zero_grad()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ids = torch.randint(1000, 30000, (args.batch_size, args.length))
    models = {"eager": encoder(), "compiled": torch.compile(encoder(), dynamic=False)}
    for name, model in models.items():
        print(f"{name}: first pass {step(model, ids):.2f} s")
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(args.repeats):
        for name, model in models.items():
            seconds[name].append(step(model, ids))
    eager, compiled = (statistics.median(seconds[name]) for name in models)
    print(f"eager {eager:.2f} s, compiled {compiled:.2f} s: {eager / compiled:.2f} times as fast")


if __name__ == "__main__":
    main()
