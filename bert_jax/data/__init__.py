"""Data pipeline from raw text to training batches.

The order of execution is sources -> tokenizers -> corpus.encoding ->
corpus.sorted_runs -> corpus.writer and corpus.row_counts -> corpus files ->
batches.visits (pairs) -> batches.masking -> batches.pipeline.

Besides interop.google_tf1, only this package uses TensorFlow.
"""
