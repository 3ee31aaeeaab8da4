"""Scores the model of a run on small tasks, without training it: `config.eval.probes`.

blimp:DIR    accuracy (%) on minimal pairs, see blimp.py
stsb:DIR     Spearman correlation (%) with sentence similarity, see stsb.py
"""

from bert_jax.probes.probes import Probes, read
from bert_jax.probes.target import Target

__all__ = ["Probes", "Target", "read"]
