"""Readers of labelled data: tables, CoNLL and SQuAD files, TensorFlow Datasets."""
