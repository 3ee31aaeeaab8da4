"""The schema of pretraining configs, as frozen dataclasses.

There are no defaults here: every number that a run uses is in its config file. The
type of a field declares its range or choices, which validation.py checks. Resumable
keys may change when a run resumes, since they do not affect its results; Branchable
ones may also differ in a branch, where loading/branch.py compares the rates instead.
The comment beside or above a field documents it. conditions.py checks conditions that
involve several fields.
"""

import dataclasses
import json
import typing
from typing import Annotated, Literal

from bert_jax.config.validation import (
    Added,
    Branchable,
    Count,
    CountOrZero,
    Fraction,
    Length,
    NotNegative,
    Path,
    PathOrEmpty,
    Positive,
    Probability,
    Range,
    Resumable,
)

AxisSize = Annotated[int, Range(min=-1)]
# Every layer is listed: the billion of a corrupt file would take hours.
NumLayers = Annotated[int, Range(min=1, max=1000)]
Dtype = Literal["float32", "bfloat16"]
ComputeDtype = Literal["auto", "float32", "bfloat16"]
TokenizerKind = Literal["wordpiece", "sentencepiece_unigram", "sentencepiece_bpe"]
OptimizerName = Literal["adamw_bert", "adamw", "lamb", "muon"]
Schedule = Literal["linear", "cosine", "constant", "wsd"]
# Recomputation in the backward pass of a layer: none, everything, or everything except
# the matmuls with its kernels.
Remat = Literal["none", "full", "matmuls"]
# The names are those of Python packages.
Tracker = Literal["wandb", "mlflow", "trackio"]
TOKENIZER_KINDS: tuple[TokenizerKind, ...] = typing.get_args(TokenizerKind)
OPTIMIZERS: tuple[OptimizerName, ...] = typing.get_args(OptimizerName)
REMAT: tuple[Remat, ...] = typing.get_args(Remat)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The corpus, and the construction of pairs and masks from it."""

    # specs, see data/sources/sources.py
    sources: Annotated[tuple[str, ...], Length(min=1)]
    source_weights: tuple[Positive, ...]  # repetitions of each source; (): once each
    # directory of the corpus, written by prepare or at the first run
    corpus_dir: Resumable[Path]
    # tokenize the text during training; the corpus directory has an index of it, and
    # the held-out documents
    stream: bool
    num_shards: Count  # files of the training set; documents are assigned by digest
    num_streams: Count  # parallel readers of the corpus, divided among processes
    validation_fraction: Fraction  # fraction of documents that are held out, by digest
    # a document with invalid UTF-8: raise an error, insert U+FFFD, or skip it
    invalid_utf8: Literal["error", "replace", "skip"]
    # in UTF-8; longer lines are split at a space, so it should exceed any sentence
    max_line_bytes: Annotated[int, Range(min=1024)]
    max_document_bytes: int  # in UTF-8; longer documents are split between lines
    word_segmented: bool  # whitespace also separates words of ideographs
    short_seq_prob: Fraction  # fraction of documents with a random shorter length
    next_sentence: bool  # sentence pairs and their loss; False: rows of one segment
    masked_lm_prob: Fraction  # fraction of a row's tokens that are masked
    # the fraction at the last step, reached linearly; 0: masked_lm_prob throughout
    final_masked_lm_prob: Annotated[Fraction, Added(0.0)]
    mask_replace_prob: Probability  # fraction of masked tokens replaced by [MASK]
    # fraction of masked tokens replaced by a random token; the rest are unchanged
    mask_random_prob: Probability
    mask_random_special: bool  # random tokens may be special ones, as in BERT
    whole_word_mask: bool  # mask all pieces of a word or none
    # maximum number of pieces or words in a span; length n is drawn with weight 1 / n
    mask_ngram_max: Count


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer of the corpus."""

    kind: TokenizerKind  # algorithm of the subword vocabulary
    # a vocab.txt or .model; "": that of init_from, or train one on the sources
    vocab_file: PathOrEmpty
    vocab_size: Count  # number of tokens, special tokens included
    lowercase: bool  # WordPiece also drops accents


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The sizes of the model, under Hugging Face's names."""

    hidden_size: Count  # a multiple of num_attention_heads
    num_hidden_layers: NumLayers  # encoder layers
    num_attention_heads: Count  # attention heads in each layer
    intermediate_size: Count  # width of the feed-forward network
    # gelu_new: the tanh form, in Google's code since 2019-02; gelu: the erf form
    hidden_act: Literal["gelu_new", "gelu"]
    hidden_dropout_prob: Fraction  # dropout rate of embeddings and layer outputs
    attention_probs_dropout_prob: Fraction  # dropout rate of attention probabilities
    max_position_embeddings: Count  # maximum length of a row, in tokens
    type_vocab_size: Count  # segment types; pretraining needs two, for A and B
    initializer_range: Positive  # standard deviation of initial kernels
    layer_norm_eps: Positive  # added to the variance in LayerNorm


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """A phase of training, with its own sequence length and batch size."""

    num_steps: Count  # optimizer steps
    # tokens in a row, including [CLS] and [SEP]; 8 leave room for a short pair
    sequence_length: Annotated[int, Range(min=8)]
    global_batch_size: Count  # rows over all devices, processes and microbatches
    max_predictions: Count  # maximum masked tokens in a row
    # maximum sentence pairs packed into a row; 1: as in BERT. At most 32, because
    # masking stores the index of a pair in a few bits of a random word.
    max_sequences_per_row: Annotated[int, Range(min=1, max=32)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossWeightsConfig:
    """The weight of each objective's mean loss in the total loss."""

    masked_lm: Positive  # weight of the masked-LM loss
    # weight of the next-sentence loss; unused if data.next_sentence is False
    next_sentence: NotNegative
    # weight of the mean squared log-partition function of the masked-LM logits, which
    # keeps them small (Chowdhery et al. 2022, PaLM, section 5); not in evaluations
    z_loss: Annotated[NotNegative, Added(0.0)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamConfig:
    """The keys of the optimizers of both pretraining and fine-tuning."""

    weight_decay: NotNegative  # decoupled; not applied to LayerNorm and biases
    beta1: Fraction  # decay of the first moment
    beta2: Fraction  # decay of the second moment
    epsilon: Positive  # added outside the square root
    clip_norm: Positive  # maximum norm of the gradient of the global batch


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(AdamConfig):
    """The optimizer and the learning rate schedule."""

    name: OptimizerName  # see training/optimizer.py
    # after a linear warmup; wsd (warmup-stable-decay) is constant, then decays
    schedule: Branchable[Schedule]
    # restart the schedule at the start of each phase
    schedule_by_phase: Branchable[bool]
    reset_moments_by_phase: bool  # set moments to 0 at the start of each phase
    learning_rate: Positive  # peak, at the end of the warmup
    warmup_steps: CountOrZero  # steps until the learning rate reaches its peak
    # wsd: steps of the decay at the end; others: 0
    decay_steps: Branchable[CountOrZero]
    mu_dtype: Dtype  # dtype of the first moment; the second is float32
    # evaluate and export the mean of the parameters over this many last steps, which
    # takes as much memory as they do; 0: the parameters themselves
    average_steps: Annotated[CountOrZero, Added(0)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """The axis sizes of the mesh; one may be -1 for the remaining devices."""

    data: AxisSize  # data parallelism
    fsdp: AxisSize  # data parallelism with sharded parameters
    tensor: AxisSize  # tensor parallelism over heads and feed-forward
    shard_optimizer: bool  # shard moments and update over data as well (ZeRO-1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are saved, and which are kept."""

    every_steps: Count  # steps between checkpoints
    every_minutes: NotNegative  # minutes after which a log step also saves; 0: never
    keep: Count  # number of newest checkpoints
    keep_every_steps: CountOrZero  # also keep the multiples of this step; 0: none
    # also save and keep the state after these steps
    keep_steps: Annotated[tuple[Count, ...], Added(())]
    keep_best: CountOrZero  # also keep this many per phase, of lowest total loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """The response to losses or gradients that are not finite, and to faulty chips."""

    max_bad_steps: Count  # consecutive bad steps before the run rolls back or ends
    # maximum rollbacks to the last checkpoint, which skip the batches after it
    max_rollbacks: CountOrZero
    # steps between replays, which repeat a step and compare the bits; 0: never
    replay_every_steps: CountOrZero


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """The evaluation on the held-out set."""

    every_steps: Count  # steps between evaluations
    num_sequences: Count  # rows to evaluate, at most, rounded up to whole batches
    masked_lm_prob: Fraction  # as data.masked_lm_prob, for held-out rows
    # small tasks that are scored as well: blimp:DIR, stsb:DIR; see probes.py
    probes: Annotated[tuple[str, ...], Added(())]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonConfig:
    """The keys of both pretraining and fine-tuning."""

    compute_dtype: ComputeDtype  # auto: bfloat16 on TPU and GPU, else float32
    accumulation_steps: Resumable[Count]  # microbatches per optimizer step
    remat: Resumable[Remat]  # recomputation in the backward pass of a layer
    log_every_steps: Resumable[Count]  # steps between log lines
    # directory of compiled programs; "auto": in ~/.cache/bert_jax; "": not stored
    compilation_cache_dir: Resumable[PathOrEmpty]
    # services that the metrics are also sent to; see monitoring/trackers.py
    trackers: Resumable[tuple[Tracker, ...]]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig(CommonConfig):
    """The config of a pretraining run."""

    # seed of the corpus order, the masks, the initial weights and dropout
    seed: Annotated[int, Range(min=0, below=2**63)]
    # initial weights, see loading/init_from.py; "": random. Keys of the model and the
    # tokenizer are then those of the source, see loading/new_run.py
    init_from: PathOrEmpty
    # RUN@STEP: start with the state of that checkpoint; "": do not
    branch_from: Branchable[str]
    # the schedule ends with these hours; 0: at num_steps
    budget_hours: Branchable[NotNegative]
    gradient_reduction_dtype: Dtype  # dtype of kernel gradients summed over devices
    # (first step, number of steps) of a profiler trace for TensorBoard; (): none
    profile: Resumable[Annotated[tuple[Count, ...], Length(min=0, max=2)]]
    data: DataConfig
    tokenizer: TokenizerConfig
    model: ModelConfig
    phases: Annotated[tuple[PhaseConfig, ...], Length(min=1)]
    loss_weights: LossWeightsConfig
    optimizer: OptimizerConfig
    mesh: Resumable[MeshConfig]
    checkpoint: Resumable[CheckpointConfig]
    guard: Resumable[GuardConfig]
    eval: Resumable[EvalConfig]

    @property
    def num_steps(self) -> int:
        return sum(phase.num_steps for phase in self.phases)

    @property
    def schedule_steps(self) -> int:
        """Number of steps of the schedule, or of the shortest one if by phase."""
        if self.optimizer.schedule_by_phase:
            return min(phase.num_steps for phase in self.phases)
        return self.num_steps
