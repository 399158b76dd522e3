"""Encode queries with onnxruntime and tokenizers alone: no torch, no transformers, no dupmae_ir.

dupmae-ir export --to onnx --model MODEL --output exported
python examples/encode_with_onnxruntime.py exported "how do I rotate the logs?"
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

folder = Path(sys.argv[1])
texts = sys.argv[2:]
settings = json.loads((folder / "graph.json").read_text())
tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
tokenizer.enable_truncation(settings["query_length"])
tokenizer.enable_padding()
batch = tokenizer.encode_batch(texts)
graph = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
inputs = {
    "input_ids": np.array([text.ids for text in batch], np.int64),
    "attention_mask": np.array([text.attention_mask for text in batch], np.int64),
}
outputs = dict(zip(settings["outputs"], graph.run(None, inputs), strict=True))
for number, text in enumerate(texts):
    line = {"query": text, "cls": outputs["cls"][number].round(6).tolist()}
    if "ot_terms" in outputs:
        terms = zip(
            outputs["ot_terms"][number].tolist(),
            outputs["ot_weights"][number].tolist(),
            strict=True,
        )
        line["ot"] = {tokenizer.id_to_token(t): round(w, 6) for t, w in terms if w > 0}
    print(json.dumps(line, ensure_ascii=False))
