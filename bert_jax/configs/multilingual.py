"""Multilingual cased BERT-base for 104 languages, with the released model's sizes.

    python -m bert_jax.train --config=configs/multilingual.py --workdir=DIR
        --config.tokenizer.vocab_file=vocab.txt

Use the vocab.txt of Google's bert-base-multilingual-cased, or your own. Sizes and
languages are from google-research/bert multilingual.md; everything else is that of
configs/base.py.

The released model oversampled small Wikipedias: a language with the share p of the text
was sampled in proportion to p ** 0.7. To do the same, set config.data.source_weights to
p ** -0.3 for each source, with the shares of your dump. In this config, all weights are
1.
"""

import ml_collections

from bert_jax.configs import base

# Wikipedia's language codes. The released list has Chinese twice, simplified and
# traditional, but both are the same Wikipedia.
LANGUAGES = (
    "af sq ar an hy ast az ba eu bar be bn bpy bs br bg my ca ceb ce zh cv hr cs da nl"
    " en et fi fr gl ka de el gu ht he hi hu is io id ga it ja jv kn kk ky ko la lv lt"
    " lmo nds lb mk mg ms ml mr min mn ne new no nn oc fa pms pl pt pa ro ru sco sr sh"
    " scn sk sl azb es su sw sv tl tg ta tt te th tr uk ur uz vi vo war cy fy pnb yo"
).split()


def get_config() -> ml_collections.ConfigDict:
    config = base.get_config()
    config.data.sources = tuple(
        f"tfds:wikipedia/20230601.{language}#text" for language in LANGUAGES
    )
    config.data.corpus_dir = "corpora/wikipedia_multilingual"
    config.tokenizer.vocab_file = "vocab.txt"
    config.tokenizer.vocab_size = 119547  # the released multilingual cased vocabulary
    config.tokenizer.lowercase = False
    return config
