"""Heads: the layers that give the term weights of a text.

A head is named in ``dupmae_config.json`` (:data:`~dupmae_ir.models.checkpoints.model_config.OT_FORMS`). Each has one
module here: :mod:`~dupmae_ir.models.heads.masked_lm` (the papers'), :mod:`~dupmae_ir.models.heads.lexical` (word
weights in closed form). The retriever calls it in training, the encoder in inference.
"""
