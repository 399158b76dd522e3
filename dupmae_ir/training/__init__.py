"""What pretrain, finetune and finetune.cross_encoder share: options, the job, arguments, trainer, log and plots.

``config`` is light; the other modules import torch and transformers.
"""
