"""Model folders on disk: names, configuration, loading, saving, digests and other projects' formats.

A model folder is a Hugging Face checkpoint with two optional files of this toolkit, ``dupmae_config.json`` and
``cls_projection.safetensors``. A folder without them is loaded as a plain retriever (RetroMAE, MASTER, BERT): its
dense vector is the [CLS] hidden state, and it has an OT part only if the checkpoint contains a trained masked-LM head.
A model with one encoder for queries and another for documents is a folder with two model folders, ``query_model`` and
``passage_model``. The formats of other projects are in :mod:`~dupmae_ir.models.checkpoints.released`.
"""
