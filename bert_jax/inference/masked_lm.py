"""Loads a masked language model and scores texts with it."""

import os
from collections.abc import Callable, Sequence

import jax

from bert_jax.inference import options
from bert_jax.inference.pseudo_likelihood import Scorer, Scores
from bert_jax.loading import model as model_lib
from bert_jax.loading.model import PlacedModel


def load_masked_lm(
    path: str | os.PathLike[str],
    *,
    max_length: int | None = None,
    batch_size: int = 128,
    compute_dtype: str = "float32",
    lowercase: bool | None = None,
) -> "MaskedLM":
    """Loads the encoder of a model and its masked-LM head.

    The model is placed on the mesh of `jax.set_mesh`, or on all devices of this process
    if there is none.

    Args:
      path: a directory of `export`, any Hugging Face BERT with a masked-LM head and
        safetensors, a TF1 checkpoint of google-research/bert, or a workdir of `train`.
      max_length: maximum tokens of a row, [CLS] and [SEP] included. Longer texts are
        truncated at the end. None: the model's own maximum.
      batch_size: rows per step, over all devices; rounded up to a multiple of the
        number of devices. A text has a row for each of its tokens.
      compute_dtype: "float32", or "bfloat16", which is faster on TPUs and GPUs.
      lowercase: whether the model was trained on lower-cased text, if it does not
        record it.

    Raises:
      ConfigError: if there is no such model, a file is corrupt, an option is out of
        range, or the devices cannot be opened.
    """
    mesh = options.current_mesh()
    with jax.set_mesh(mesh):
        found = model_lib.read_masked_lm(os.fspath(path), lowercase, "model")
        trained = model_lib.place(found)
    return MaskedLM(
        trained,
        mesh,
        max_length=max_length,
        batch_size=batch_size,
        compute_dtype=compute_dtype,
    )


class MaskedLM:
    """A pretrained model that scores texts; made by `load_masked_lm`.

    Attributes:
      tokenizer: the tokenizer; `tokenizer.vocab[id]` is the token of an id.
      max_length: maximum tokens of a row.
      notes: a line for each part of the model that is not used.
      num_truncated: number of texts truncated to `max_length` so far.
      num_tokens: number of tokens scored so far.
    """

    def __init__(
        self,
        trained: PlacedModel,
        mesh: jax.sharding.Mesh,
        *,
        max_length: int | None,
        batch_size: int,
        compute_dtype: str,
    ):
        """Initializes the model; see `load_masked_lm` for the options.

        Args:
          trained: a model with a masked-LM head, on `mesh`.
          mesh: the mesh to compute on.
          max_length, batch_size, compute_dtype: as in `load_masked_lm`.
        """
        options.check_positive("batch_size", batch_size)
        self.tokenizer, self.notes = trained.tokenizer, trained.notes
        self.max_length = options.row_length(trained, max_length)
        self.num_truncated = self.num_tokens = 0
        self._params, self._mesh = trained.params, mesh
        self._scorer = Scorer(
            trained.graphdef,
            trained.tokenizer,
            max_length=self.max_length,
            batch_size=batch_size,
            dtype=options.dtype_of(compute_dtype),
            mesh=mesh,
        )

    def score(
        self,
        texts: Sequence[str],
        *,
        on_batch: Callable[[int], object] | None = None,
    ) -> Scores:
        """Computes the pseudo-log-likelihood of each text.

        Args:
          texts: N texts.
          on_batch: called after each batch with the number of tokens scored in it.

        Returns:
          `values` float64[N], in nats, and `num_tokens` int64[N].

        Raises:
          TypeError: if `texts` is not a list of strings.
        """
        options.as_parts(texts)  # refuses a single string
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"texts must be strings, not {text!r}")
        with jax.set_mesh(self._mesh):
            found = self._scorer(self._params, texts, on_batch)
        self.num_truncated += found.num_truncated
        self.num_tokens += int(found.num_tokens.sum())
        return found
